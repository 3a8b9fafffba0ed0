"""Adds and subtracts: the model `simple` of Triton's examples."""


class Simple:
    def load(self, context):
        pass

    def predict(self, inputs):
        return {
            "OUTPUT0": inputs["INPUT0"] + inputs["INPUT1"],
            "OUTPUT1": inputs["INPUT0"] - inputs["INPUT1"],
        }
