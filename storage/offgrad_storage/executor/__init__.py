"""Write-behind and prefetch on I/O threads."""
