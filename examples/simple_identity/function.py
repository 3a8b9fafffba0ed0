"""Gives back what it gets: the model `simple_identity` of Triton's examples."""


class SimpleIdentity:
    def load(self, context):
        pass

    def predict(self, inputs):
        return {"OUTPUT0": inputs["INPUT0"]}
