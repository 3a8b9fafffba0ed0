"""Counts words: a function without weights."""

import numpy as np


class TextStats:
    def load(self, context):
        self.encoding = context.options.get("encoding", "utf-8")

    def predict(self, inputs):
        texts = [text.decode(self.encoding) for text in inputs["text"]]
        words = [text.split() for text in texts]
        longest = [max(found, key=len, default="").encode(self.encoding) for found in words]
        return {
            "words": np.array([len(found) for found in words], dtype=np.int64),
            "characters": np.array([len(text) for text in texts], dtype=np.int64),
            "longest": np.array(longest, dtype=object),
        }
