"""The Open Inference Protocol v2 without its transports: what gRPC and REST both answer.

Requests and replies (`requests`, `inferences`), their parameters (`parameters`), what a model is (`models`), its
figures (`statistics`), the model repository (`repository`), shared memory (`regions`), classification
(`classification`) and the server's settings (`settings`). Descriptions are messages of the public contract, whose
JSON form is what REST answers.
"""
