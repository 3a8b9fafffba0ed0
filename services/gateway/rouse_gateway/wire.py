"""Tensors in protobuf messages, without copying their bytes; see rouse_contracts.views."""

from __future__ import annotations

from rouse_contracts.views import BATCH_TENSORS, TensorView, bytes_field, parse_batch, parse_tensor, tensor_parts

__all__ = ["BATCH_TENSORS", "TensorView", "bytes_field", "parse_batch", "parse_tensor", "tensor_parts"]
