"""Has the deployed digit reader read the images that it was not trained on."""

from train import digits

import rouse

_, images, _, labels = digits()
with rouse.Client() as client:
    result = client.infer("digits", {"image": images})
print(f"{(result['digit'] == labels).mean():.1%} of {len(labels)} held-out digits are right")
print(f"{result.timings.total_ms:.1f} ms on {result.node}/{result.device}, `rouse trace {result.trace_id}`")
