"""The worker: one training run under one policy, in a process of its own.

It reads its job, one line of JSON, from standard input, and reports by lines of JSON on standard
output. Standard input stays open as long as the parent lives: its end tells the worker to go.
"""

import contextlib
import ctypes.util
import errno
import gc
import json
import mmap
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any, NoReturn

import numpy as np
import xxhash

import offgrad
from offgrad import memory
from offgrad.cli.config import Config
from offgrad.cli.gpt import GPT, GPTConfig
from offgrad.cli.limits import limit_address_space, peak_rss
from offgrad.cli.text import Bytes, batch
from offgrad.policies import OffloadSession, offload
from offgrad.profiler import MemoryProfile, profile_memory

