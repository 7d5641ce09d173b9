"""A Ray Serve deployment: requests are captured as they come, joined by nodes. `serve run serve_app:app`"""

import os

from ray import serve

from edbc.reach import Predictor


@serve.deployment(max_ongoing_requests=1024)
class Trees:
    def __init__(self, plan: str):
        self.predictor = Predictor(plan)

    @serve.batch(
        max_batch_size=20_000, batch_wait_timeout_s=0.0, batch_size_fn=lambda batch: sum(x.num_nodes for x in batch)
    )
    async def run(self, captured):
        return self.predictor.net.run(captured)[0]

    async def __call__(self, request):
        instance = self.predictor.parse((await request.body()).decode())
        result = await self.run(self.predictor.net.capture(instance))
        return {name: tensor.tolist() for name, tensor in self.predictor.named(result).items()}


app = Trees.bind(os.path.abspath(os.environ.get("PLAN", "plans/trees.yaml")))
