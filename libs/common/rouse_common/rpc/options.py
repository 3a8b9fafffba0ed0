"""gRPC channel and server options, the same at both ends."""

from __future__ import annotations


def channel_options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        # A dead peer is noticed in seconds, an idle channel costs nothing.
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        # A restarted neighbour is found again at once, not after gRPC's default of up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        # Despite its name this is the time that one attempt to connect has: a busy machine may need some.
        ("grpc.min_reconnect_backoff_ms", 5_000),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.enable_retries", 0),
    ]


def server_options(max_message_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Two services never share a port by accident.
        ("grpc.so_reuseport", 0),
    ]
