"""Knowing that a connection stands before something is sent over it."""

from __future__ import annotations

import asyncio

import grpc


async def connected(channel: grpc.aio.Channel, timeout_s: float, *, patient: bool) -> bool:
    """Whether the channel stands, connecting it where needed.

    Args:
        channel: the channel.
        timeout_s: how long to wait at most, seconds.
        patient: whether a refused connection is tried again until then, as for a neighbour that restarts.
    """
    state = channel.get_state(try_to_connect=True)
    if state is grpc.ChannelConnectivity.READY:
        return True
    try:
        async with asyncio.timeout(timeout_s):
            while state is not grpc.ChannelConnectivity.READY:
                given_up = state is grpc.ChannelConnectivity.TRANSIENT_FAILURE and not patient
                if given_up or state is grpc.ChannelConnectivity.SHUTDOWN:
                    return False
                await channel.wait_for_state_change(state)
                state = channel.get_state(try_to_connect=True)
    except TimeoutError:
        return False
    return True
