"""An ASGI application, one instance per request, run in mini-batches: `uvicorn asgi_app:app --lifespan off`"""

import asyncio
import json
import os
import sys

from edbc.reach import Batcher, Busy, Late, Predictor

predictor = Predictor(os.environ.get("PLAN", "plans/trees.yaml"))
batcher = Batcher(predictor.net, max_waiting=int(os.environ.get("MAX_WAITING", "1024")))
sys.setswitchinterval(0.0005)  # answer "busy" at once, while a mini-batch is recorded in the other thread


async def app(scope, receive, send):
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message.get("body", b""), message.get("more_body", False)
    answer, gone = asyncio.ensure_future(reply(body)), asyncio.ensure_future(receive())
    await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
    gone.cancel()
    if not answer.done():  # the client went away: drop the request before it executes
        answer.cancel()
        return
    status, content = answer.result()
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]})
    await send({"type": "http.response.body", "body": json.dumps(content).encode()})


async def reply(body):
    try:
        result = await batcher(predictor.parse(body.decode()), within=1.0)
        return 200, {name: tensor.tolist() for name, tensor in predictor.named(result).items()}
    except (Busy, Late) as error:
        return 503, {"error": str(error)}
    except Exception as error:
        return 400, {"error": f"{type(error).__name__}: {error}"}
