"""One response for every number of the request: the decoupled model `repeat_int32` of Triton's examples."""

import time

import numpy as np


class RepeatInt32:
    def load(self, context):
        pass

    def predict(self, inputs, request):
        """IN[i] is answered as OUT, with its position as IDX, after DELAY[i] ms; behind the last one it works on
        for WAIT[0] ms."""
        delays = inputs["DELAY"]
        if len(delays) != len(inputs["IN"]):
            raise ValueError(f"IN has {len(inputs['IN'])} numbers, DELAY {len(delays)}")
        for index, number in enumerate(inputs["IN"]):
            pause(delays[index], request)
            yield {"OUT": np.array([number], np.int32), "IDX": np.array([index], np.uint32)}
        pause(inputs["WAIT"][0], request)


def pause(milliseconds, request):
    """Sleeps in short pieces, and not on when nobody waits any more."""
    until = time.monotonic() + float(milliseconds) / 1000
    while not request.cancelled and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.02))
