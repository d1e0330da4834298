"""What a capture knows of real scripts: library models, bare loops, compiled and scripted models."""

from pathlib import Path

import pytest
from live_host_client import Capture, LiveHost, plain

pytestmark = pytest.mark.timeout(240)

LIBRARY_MODEL = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                                     num_key_value_heads=1, max_position_embeddings=64, bos_token_id=0, eos_token_id=None)).eval()
ids = torch.randint(1, 64, (1, 9))
"""


def captured(tmp_path: Path, text: str) -> Capture:
    script = tmp_path / "script.py"
    script.write_text(text)
    alone = plain(script)
    assert alone.exit_code == 0, alone.stderr
    with LiveHost(script, folder=tmp_path / "host") as host:
        result = host.capture()
    assert result.stdout == alone.stdout
    assert result.end["exit_code"] == 0
    return result


def test_generate_is_one_call_and_ids_repeat(tmp_path: Path) -> None:
    text = LIBRARY_MODEL + "print(model.generate(ids, max_new_tokens=5, do_sample=True, pad_token_id=0).tolist())\n"
    first, second = captured(tmp_path, text), captured(tmp_path, text)
    assert first.drivers() == [("generate", 1, None)]
    assert first.result["roots"][0]["module_class"] == "LlamaForCausalLM"
    assert [first.result[key] for key in ("roots", "notes")] == [second.result[key] for key in ("roots", "notes")]
    assert first.result["drivers"][0]["signature"] == second.result["drivers"][0]["signature"]
    assert any("driver" in event for event in first.events)


def test_a_loop_with_the_library_cache(tmp_path: Path) -> None:
    result = captured(
        tmp_path,
        LIBRARY_MODEL
        + """
with torch.no_grad():
    out = model(ids, use_cache=True)
    cache, token = out.past_key_values, out.logits[:, -1:].argmax(-1)
    for _ in range(4):
        out = model(token, past_key_values=cache)
        token = out.logits[:, -1:].argmax(-1)
        print(token.item())
""",
    )
    assert result.drivers() == [("loop", 1, None)]
    assert result.result["drivers"][0]["signature"].startswith("5 steps")


def test_streamed_generation_is_a_loop(tmp_path: Path) -> None:
    result = captured(
        tmp_path,
        LIBRARY_MODEL
        + """
import queue, threading
class Streamer:
    def __init__(self): self.queue = queue.Queue()
    def put(self, value): self.queue.put(value)
    def end(self): self.queue.put(None)
streamer = Streamer()
options = dict(max_new_tokens=4, pad_token_id=0, do_sample=False, streamer=streamer)
threading.Thread(target=model.generate, args=(ids,), kwargs=options).start()
while (value := streamer.queue.get()) is not None:
    print(value.tolist())
""",
    )
    assert result.drivers() == [("loop", 1, None)]
    assert "not_replayable" in result.notes()


def test_batches_of_an_encoder(tmp_path: Path) -> None:
    result = captured(
        tmp_path,
        """
import torch
from torch import nn
torch.manual_seed(0)
encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
with torch.inference_mode():
    for batch, length in ((4, 7), (4, 7), (4, 11), (1, 3), (4, 7)):
        print(encoder(torch.randn(batch, length, 16)).mean().item())
""",
    )
    assert [driver["count"] for driver in result.result["drivers"]] == [3, 1, 1]
    assert all(len(driver["wall_ms"]) == driver["count"] for driver in result.result["drivers"])


def test_models_that_cannot_be_replaced_still_run(tmp_path: Path) -> None:
    result = captured(
        tmp_path,
        """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)
    def forward(self, x):
        return self.helper(self.fc(x))
    def helper(self, x):
        return torch.relu(x)
torch.manual_seed(0)
x = torch.randn(2, 4)
net = Net().eval()
with torch.no_grad():
    for model in (Net(), torch.jit.script(net), torch.jit.trace(net, x), torch.compile(net, backend="eager")):
        print(type(model).__name__, model(x).sum().item())
    print(torch.compile(lambda x: net(x) + 1, backend="eager", fullgraph=True)(x).sum().item())
    print(torch.export.export(net, (x,)).module()(x).sum().item())
    print(torch.fx.symbolic_trace(net)(x).sum().item())
""",
    )
    codes = [code for _, _, code in result.drivers()]
    assert codes[:4] == ["training_mode", "scripted", "scripted", "compiled"]
    assert "compiled" in result.notes()
    assert "recording_failed" not in result.notes()


def test_a_mixin_on_something_that_is_no_module(tmp_path: Path) -> None:
    result = captured(
        tmp_path,
        """
import torch
from torch import nn
class Generating:
    def generate(self, x):
        return self(self(x))
class Model(Generating, nn.Linear):
    pass
class Wrapper(Generating):
    def __init__(self, model): self.model = model
    def __call__(self, x): return self.model(x)
torch.manual_seed(0)
model = Model(3, 3).eval()
with torch.no_grad():
    print(Wrapper(model).generate(torch.ones(1, 3)).sum().item(), model.generate(torch.ones(1, 3)).sum().item())
""",
    )
    assert [(method, count) for method, count, _ in result.drivers()] == [("loop", 1), ("generate", 1)]
