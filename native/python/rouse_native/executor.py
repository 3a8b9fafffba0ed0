"""The executor of a device: its process and the calls to it."""

from rouse_native.executor_client import ExecutorClient, SessionLimits
from rouse_native.executor_process import ExecutorProcess, ExecutorSettings, State

__all__ = ["ExecutorClient", "ExecutorProcess", "ExecutorSettings", "SessionLimits", "State"]
