"""A worker of a distributed job for tests, over real gRPC."""

from __future__ import annotations

from typing import Any

import grpc

from rouse_common.errors import from_rpc_error
from rouse_contracts import broker


class Worker:
    """A client of the broker. Every method raises the RouseError that it answered."""

    def __init__(self, address: str) -> None:
        options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", 64 << 20)]
        self.channel = grpc.aio.insecure_channel(address, options=options)
        self.stub = broker.BrokerServiceStub(self.channel)

    async def call(self, method: str, request: Any, timeout_s: float = 30) -> Any:
        try:
            return await getattr(self.stub, method)(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error) from None

    async def create(self, job_id: str, workers: int = 4, lifetime_s: float = 0, **limits: Any) -> broker.Job:
        job = broker.Job(job_id=job_id, workers=workers, **limits)
        if lifetime_s:
            job.lifetime.FromMilliseconds(int(lifetime_s * 1000))
        made: broker.Job = (await self.call("CreateJob", broker.CreateJobRequest(job=job))).job
        return made

    async def delete(self, job_id: str) -> None:
        await self.call("DeleteJob", broker.DeleteJobRequest(job_id=job_id))

    async def jobs(self) -> list[str]:
        return [job.job_id for job in (await self.call("ListJobs", broker.ListJobsRequest())).jobs]

    async def send(self, job_id: str, source: int, target: int, payload: bytes, tag: str = "") -> int:
        message = broker.Message(source=source, tag=tag, payload=payload)
        request = broker.SendRequest(job_id=job_id, target=target, message=message)
        sequence: int = (await self.call("Send", request)).sequence
        return sequence

    async def receive(self, job_id: str, rank: int, wait_s: float = 0, most: int = 0) -> list[broker.Message]:
        request = broker.ReceiveRequest(job_id=job_id, rank=rank, max_messages=most)
        request.wait.FromMilliseconds(int(wait_s * 1000))
        return list((await self.call("Receive", request)).messages)

    async def put(self, job_id: str, key: str, data: bytes) -> None:
        await self.call("PutObject", broker.PutObjectRequest(job_id=job_id, key=key, data=data))

    async def get(self, job_id: str, key: str) -> bytes:
        data: bytes = (await self.call("GetObject", broker.GetObjectRequest(job_id=job_id, key=key))).data
        return data

    async def barrier(self, job_id: str, name: str, rank: int, timeout_s: float = 30) -> float:
        request = broker.AwaitBarrierRequest(job_id=job_id, name=name, rank=rank)
        waited: float = (await self.call("AwaitBarrier", request, timeout_s)).waited_ms
        return waited

    async def check(self) -> broker.CheckChannelResponse:
        answer: broker.CheckChannelResponse = await self.call("CheckChannel", broker.CheckChannelRequest())
        return answer

    async def close(self) -> None:
        await self.channel.close()
