"""The machinery of module hooks: what is registered, the running calls, backward hooks."""
