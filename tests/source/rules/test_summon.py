"""``summon_full_params``, and what runs among whole parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fsdp_migrate.left_comments import stops_runs
from fsdp_migrate.source import scan_source
from tests.source.projects import FSDP, after
from tests.source.samples import MODEL, assert_commented, assert_turned, codes, turned, uses


if TYPE_CHECKING:
    from pathlib import Path


pytestmark = pytest.mark.any_torch


TURNED = [
    (
        "with FSDP.summon_full_params(model, False, writeback=False):\n    print(model.weight)\n",
        "with summon_full_params(model, recurse=False, writeback=False):\n    print(model.weight)\n",
    ),
    (
        "with FSDP.summon_full_params(model):\n    model = model.to('cpu')\n",
        "with summon_full_params(model):\n    model = model.to('cpu')\n",
    ),
    (
        "with FSDP.summon_full_params(model) if whole else nothing:\n    pass\n",
        "with summon_full_params(model) if whole else nothing:\n    pass\n",
    ),
    ("with model.summon_full_params(model):\n    pass\n", "with summon_full_params(model):\n    pass\n"),
    (
        "with FSDP.summon_full_params(model):\n    x = model.embed.weight.norm()\n",
        "with summon_full_params(model):\n    x = model.embed.weight.norm()\n",
    ),
]


@pytest.mark.parametrize(("before", "after"), TURNED)
def test_methods_become_functions(before: str, after: str) -> None:
    assert_turned(before, after)


COMMENTED = [
    ("with FSDP.summon_full_params(*args):\n    pass\n", "FM313"),
    ("with FSDP.summon_full_params(model):\n    model.generate(x)\n", "FM332"),
    (
        "context = lambda: FSDP.summon_full_params(model)\nwith context():\n    model.generate(x)\n",
        "FM313",
    ),
    ("with FSDP.summon_full_params(trainer.model):\n    images = trainer.pipe(prompts)\n", "FM332"),
    ("with FSDP.summon_full_params(model):\n    score = evaluate(pipe, prompts)\n", "FM332"),
    ("with FSDP.summon_full_params(model):\n    score = evaluate(model, prompts)\n", "FM332"),
    ("with FSDP.summon_full_params(model):\n    said = tools.respond_to_prompts(model=model)\n", "FM332"),
    ("with torch.no_grad():\n    stack.enter_context(FSDP.summon_full_params(model))\n", "FM313"),
]


@pytest.mark.parametrize(("body", "code"), COMMENTED)
def test_what_is_left_to_people_gets_one_comment(body: str, code: str) -> None:
    assert_commented(body, code)


@pytest.mark.parametrize(
    ("inner", "said"),
    [
        ("model.generate(x)", "register_forward_methods(model, 'generate')"),
        ("model.encode(x)", "register_forward_methods(model, 'encode')"),
        ("model.lm_head(model.encoder(x))", "'that_method'"),
        ("model(x)", "gathers its parameters itself"),
    ],
)
def test_the_comment_names_what_runs(inner: str, said: str) -> None:
    assert said in turned(f"{MODEL}with FSDP.summon_full_params(model):\n    y = {inner}\n")


@pytest.mark.parametrize(
    ("runs", "is_said"),
    [
        ("torch.save(model.encoder.state_dict(), path)", False),
        ("model.layers.load_state_dict(state)", False),
        ("[p.zero_() for p in model.module.decoder.parameters()]", False),
        ("model.head.reset_parameters()", False),
        ("model.head.init_embeddings()", False),
        ("model.embed.position.normal_(0.0, 0.02)", False),
        ("model.layers.append(more)", False),
        ("load(model.decoder)", False),
        ("y = model.vit.to_embedding(x)", True),
        ("y = model.encoder.__call__(x)", True),
        ("y = model.encoder.layers.first(x)", True),
        ("model.encoder(x)", True),
    ],
)
def test_what_a_part_is_asked_for_does_not_run_it(runs: str, *, is_said: bool) -> None:
    load = "def load(part):\n    part.block.load_state_dict(part.blocks.state_dict())\n\n\n"
    body = f"{load}{MODEL}with FSDP.summon_full_params(model, writeback=True):\n    {runs}\n"
    assert (("FM332", "commented") in codes(body)) is is_said
    part = body.replace("summon_full_params(model,", "summon_full_params(model.decoder,")
    assert ("FM332", "commented") not in codes(part.replace(runs, "load(model.decoder)"))


KEEPS = (
    "def keep_best(model, path):\n    inner = model.module\n    inner.save_pretrained(path)\n"
    "def keep_config(model):\n    model.config.save_pretrained(path)\n"
)


@pytest.mark.parametrize(
    ("inner", "is_read"),
    [
        ("out = model.generate(x)\n    w = model.get_output_embeddings().weight\n", True),
        ("out = model(x)\n    torch.save(model.state_dict(), path)\n", True),
        ("out = evaluate(model)\n    n = sum(p.abs().sum() for p in model.parameters())\n", True),
        ("out = model.generate(x)\n    y = out.shape\n", False),
        # What is saved is whole in the context alone.
        ("out = model.generate(x)\n    model.module.save_pretrained(path)\n", True),
        ("out = evaluate(model)\n    if main:\n        keep_best(model, path)\n", True),
        ("out = evaluate(model)\n    tokenizer.save_pretrained(path)\n", False),
        ("out = evaluate(model)\n    keep_config(model)\n", False),
    ],
)
def test_what_reads_parameters_beside_a_run_keeps_its_context(inner: str, *, is_read: bool) -> None:
    after = turned(f"{KEEPS}{MODEL}with FSDP.summon_full_params(model):\n    {inner}")
    assert ("make that fsdp_migrate.runtime.summon_full_params for what reads parameters" in after) is is_read
    assert ("take the context away" in after) is not is_read


ACCELERATE = (
    "from accelerate import Accelerator\n"
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
    "def sample(model, x):\n    with FSDP.summon_full_params(model, writeback=False):\n        y = {0}\n\n\n"
    "accelerator = Accelerator()\nmodel, other = accelerator.prepare(model, other)\nsample(model, x)\n"
)
TRAINERS = (
    "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    "from transformers import Trainer\n\n\n"
    "class Base(Trainer):\n    pass\n\n\n"
    "class Mine(Base):\n    def evaluate(self, model):\n"
    "        with FSDP.summon_full_params(model, writeback=False):\n            y = {0}\n"
)


@pytest.mark.parametrize(
    ("body", "is_alone"),
    [
        ("if rank == 0:\n    with FSDP.summon_full_params(model):\n        model.generate(x)\n", True),
        ("with FSDP.summon_full_params(model):\n    if is_main_process:\n        evaluate(model, x)\n", True),
        (
            "with FSDP.summon_full_params(model):\n    if rank:\n        pass\n    else:\n        model(x)\n",
            True,
        ),
        (
            "with FSDP.summon_full_params(model):\n    y = model(x)\n    if rank == 0:\n        print(y)\n",
            False,
        ),
        ("if rank == 0:\n    print(1)\nwith FSDP.summon_full_params(model):\n    model.generate(x)\n", False),
        ("if many:\n    with FSDP.summon_full_params(model):\n        model.generate(x)\n", False),
    ],
)
def test_one_rank_that_runs_it_alone_would_wait_for_the_others(body: str, *, is_alone: bool) -> None:
    [said] = [use.becomes for use in uses(f"{MODEL}{body}") if use.code == "FM332"]
    assert ("would wait for the others" in said) is is_alone


OF_A_FRAMEWORK = [
    ("model(x)", ("FM313", "kept")),
    ("model.generate(x)", ("FM313", "commented")),
    ("model.encode(x)", ("FM332", "commented")),
    ("model.layers.first(x)", ("FM332", "commented")),
    ("model(x), list(model.parameters())", ("FM332", "commented")),
]


@pytest.mark.parametrize(("inner", "found"), OF_A_FRAMEWORK)
@pytest.mark.parametrize("frame", [ACCELERATE, TRAINERS])
def test_fsdp1s_context_does_nothing_to_a_frameworks_model(
    frame: str, inner: str, found: tuple[str, str]
) -> None:
    told = [(use.code, use.action) for use in scan_source(frame.format(inner))]
    assert found in told
    assert ("FM332" in {code for code, _ in told}) is (found[0] == "FM332")
    assert ("Only if 'generate' runs layers" in turned(frame.format(inner), header="")) is (
        "generate" in inner
    )


@pytest.mark.parametrize("inner", ["model(x)", "model.generate(x)"])
def test_a_model_that_the_source_wraps_itself_is_none_of_a_frameworks(inner: str) -> None:
    wraps = ACCELERATE.replace("accelerator.prepare(model, other)", "FSDP(model), accelerator.prepare(other)")
    for text in (wraps, TRAINERS.replace("(Trainer)", "(Engine)")):
        assert "FM332" in {use.code for use in scan_source(text.format(inner))}


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ("model, recurse=False", "model"),
        ("model, False, False", "model, writeback=False"),
        ("recurse=False, module=model", "model"),
        ("model, writeback=False", "model, writeback=False"),
    ],
)
@pytest.mark.parametrize("frame", [ACCELERATE, TRAINERS])
def test_a_frameworks_embeddings_are_no_part_of_its_outermost_unit(
    frame: str, given: str, becomes: str
) -> None:
    text = frame.replace("model, writeback=False", given).format(
        "model.get_input_embeddings().weight.clone()"
    )
    after = turned(text, header="")
    assert f"with summon_full_params({becomes}):\n" in after
    assert "DTensor" not in after
    # What the source wraps itself has the units that FSDP1 had.
    own = turned(f"{MODEL}with FSDP.summon_full_params({given}):\n    y = model.embed.weight.clone()\n")
    assert ("recurse=False" in own) is ("False" in given.replace("writeback=False", ""))


CHOSEN = "context = FSDP.summon_full_params(model, writeback=False) if whole else nullcontext()\n"


@pytest.mark.parametrize(
    ("below", "found"),
    [
        ("with context:\n    save(list(model.parameters()))\n", "rewritten"),
        ("with torch.no_grad(), context:\n    save(list(model.parameters()))\n", "rewritten"),
        ("with context:\n    model(x)\n", "FM332"),
        ("with context:\n    pass\nwith context:\n    pass\n", "FM313"),
        ("def later():\n    with context:\n        pass\n", "FM313"),
        ("stack.enter_context(context)\n", "FM313"),
    ],
)
def test_a_context_that_a_name_holds(below: str, found: str) -> None:
    after = turned(f"{MODEL}{CHOSEN}{below}")
    assert (f"fsdp-migrate: {found}" in after) is (found != "rewritten")
    new = "context = summon_full_params(model, writeback=False) if whole else nullcontext()"
    assert (new in after) is (found == "rewritten")


def test_fsdp1s_call_that_is_left_stops_a_run() -> None:
    assert stops_runs("FM313")


INNER = """\
class Loop:
    def draw(self, batch):
        return self.model.{runs}(batch)

    @contextmanager
    def whole(self):
        with FSDP.summon_full_params(self.model):
            yield

    def step(self, batch):
        with {context}:
            return self.draw(batch)
"""


@pytest.mark.parametrize("context", ["FSDP.summon_full_params(self.model, recurse=False)", "self.whole()"])
def test_the_model_that_runs_by_way_of_a_function_of_the_source(context: str) -> None:
    for runs, is_said in (("generate", True), ("encode", True), ("state_dict", False)):
        found = codes(INNER.format(context=context, runs=runs))
        assert (("FM332", "commented") in found) is is_said, runs
    body = "def run(net, x):\n    return net(x)\n\n\nwith FSDP.summon_full_params(m):\n    run({}, x)\n"
    assert ("FM332", "commented") in codes(body.format("m"))
    assert ("FM332", "commented") not in codes(body.format("other"))


@pytest.mark.parametrize(
    ("given", "is_said"),
    [
        ("inner = m.module\n    run(inner, x)", True),
        ("inner = m\n    run(net=inner, x=x)", True),
        ("run(m.module, x)", True),
        ("inner = m.module\n    score = evaluate(inner)", True),
        ("inner = make()\n    run(inner, x)", False),
    ],
)
def test_the_model_that_runs_elsewhere_by_another_name(given: str, *, is_said: bool) -> None:
    body = f"def run(net, x):\n    return net.encode(x)\n\n\nwith FSDP.summon_full_params(m):\n    {given}\n"
    assert (("FM332", "commented") in codes(body)) is is_said


def test_a_pipeline_is_no_method_of_the_model() -> None:
    after = turned("with FSDP.summon_full_params(self.net):\n    images = self.pipe(prompts)\n")
    assert "where the pipeline calls it" in after
    assert "register_forward_methods" not in after


def test_a_model_that_is_given_to_its_own_function_is_fsdp1s_without_imports() -> None:
    body = "with self.net.summon_full_params(self.net, writeback=False) if many else nothing():\n    save()\n"
    after = turned(body, "")
    assert "with summon_full_params(self.net, writeback=False) if many else nothing():\n" in after
    theirs = "from fairscale.nn import FullyShardedDataParallel as FSDP\n"
    assert "FM313" not in dict(codes(body, theirs))


CONTEXT = "with FSDP.summon_full_params(model, rank0_only=True):\n    state = model.state_dict()\n"
NEW = "Net.from_pretrained(None, state_dict={})"


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (f"{CONTEXT}    if rank == 0:\n        hf = {NEW.format('state')}\n        hf.generate(x)\n", False),
        (f"{CONTEXT}    hf = {NEW.format('state')}.to(0)\n    save(hf)\n    hf.generate(x)\n", False),
        (f"hf = {NEW.format('old')}\n{CONTEXT}    hf.generate(x)\n", False),
        (f"hf = {NEW.format('old')}\nmodel = FSDP(hf)\n{CONTEXT}    hf.generate(x)\n", True),
        (f"{CONTEXT}    hf = model.module\n    hf.generate(x)\n", True),
        (f"{CONTEXT}    hf = Pipeline(model)\n    hf.generate(x)\n", True),
        (f"{CONTEXT}    self.generate(x)\n", True),
    ],
)
def test_a_new_model_is_not_the_one_that_is_gathered(body: str, is_said: bool) -> None:
    assert (("FM332", "commented") in codes(body)) is is_said


@pytest.mark.parametrize(
    "made",
    [
        "model.module if hasattr(model, 'module') else model",
        "getattr(model, 'module', model)",
        "model if plain else model.module",
        "unwrap(model)",
    ],
)
@pytest.mark.parametrize(
    ("runs", "is_said"),
    [
        ("base.embed_tokens(x)", True),
        ("base.model.embed_tokens(x)", True),
        ("base(x)", True),
        ("base.model.embed_tokens.weight.norm()", False),
        ("[p for p in base.decoder.parameters()]", False),
        ("other.model.embed_tokens(x)", False),
    ],
)
def test_the_model_runs_by_another_name(made: str, runs: str, *, is_said: bool) -> None:
    body = f"base = {made}\nwith FSDP.summon_full_params(model):\n    y = {runs}\n"
    assert (("FM332", "commented") in codes(body)) is is_said


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        ("def run_in(model: FSDP, fn):\n    {}\n        return fn()\n", True),
        (
            (
                "def summon(fn):\n    def inner(model: FSDP, x):\n        {}\n"
                "            return fn(model, x)\n    return inner\n"
            ),
            True,
        ),
        (
            "def run_in(model: FSDP, fn):\n    {}\n        return sum(p.sum() for p in model.parameters())\n",
            False,
        ),
    ],
)
def test_a_function_that_is_given_may_run_the_model(body: str, is_said: bool) -> None:
    found = codes(body.format("with FSDP.summon_full_params(model):"))
    assert (("FM313", "commented") in found) is is_said
    assert (("FM313", "rewritten") in found) is not is_said


@pytest.mark.parametrize(
    ("function", "is_run"),
    [
        ("def embed(net, x):\n    return net(x)\n", True),
        ("def embed(net, x):\n    return inner(x, net=net)\ndef inner(x, net):\n    return net(x)\n", True),
        ("class A:\n    def embed(self, net, x):\n        return net.forward(x)\nembed = A().embed\n", True),
        ("def embed(net, x):\n    return net.weight + x\n", False),
        ("def embed(net, x):\n    return x(net)\n", False),
    ],
)
@pytest.mark.parametrize("call", ["embed(model, x)", "embed(x=x, net=model)"])
def test_a_function_of_another_file_that_runs_the_model(
    tmp_path: Path, function: str, call: str, *, is_run: bool
) -> None:
    main = f"from other import embed\n{FSDP}with FSDP.summon_full_params(model):\n    y = {call}\n"
    found = after(tmp_path, {"main.py": main, "other.py": function}, "main.py")
    assert ("# fsdp-migrate: FM332 the model seems to run in this context" in found) is is_run


METHODS = """\
with (
    unwrap_model_for_generation(self.model_wrapped, self.accelerator) as unwrapped,
    torch.no_grad(),
    FSDP.summon_full_params(self.model_wrapped, recurse=False) if self.is_fsdp else nullcontext(),
):
    out = {}
"""


@pytest.mark.parametrize(
    ("call", "is_said"),
    [
        ("unwrapped.generate_batch(x)", True),
        ("self.model_wrapped.score(x)", True),
        ("self.model_wrapped.module.rank_all(x)", True),
        ("accelerator.unwrap_model(self.model_wrapped).get_image_features(x)", True),
        ("unwrapped.log_prob(x)", True),
        ("unwrapped.save_pretrained(x)", False),
        ("unwrapped.get_input_embeddings()", False),
        ("unwrapped.named_parameters()", False),
        ("unwrapped.merge_adapter()", False),
        ("unwrapped.to(0).eval()", False),
        ("unwrapped.print_trainable_parameters()", False),
        ("self.model_wrapped.weight.norm()", False),
        ("self.processing_class.batch_decode(x)", False),
        ("writer.flush()", False),
    ],
)
def test_any_method_of_the_models_own_may_run_it(call: str, *, is_said: bool) -> None:
    assert (("FM332", "commented") in codes(METHODS.format(call))) is is_said


@pytest.mark.parametrize(
    ("method", "is_said"), [("return self.layers(x)", True), ("return sum(p.sum() for p in self.w)", False)]
)
def test_a_method_that_is_seen_to_call_nothing_does_not_run_the_model(method: str, *, is_said: bool) -> None:
    own = f"class Net(nn.Module):\n    def rate(self, x):\n        {method}\n\n\n"
    assert (("FM332", "commented") in codes(f"{own}{METHODS.format('unwrapped.rate(x)')}")) is is_said


@pytest.mark.parametrize(
    ("runs", "is_said"),
    [
        ("unwrapped.generate_batch(ids)", True),
        ("unwrapped.score(ids)", True),
        ("unwrapped(ids)", True),
        ("model.module.score(ids)", True),
        ("model.rollout(ids)", True),
        ("unwrapped.save_pretrained(path)", False),
        ("unwrapped.merge_adapter()", False),
        ("dict(model.named_parameters())", False),
        ("model.eval()", False),
        ("model.tie_weights()", False),
        ("tokenizer.batch_decode(ids)", False),
        ("vllm.load_weights(unwrapped.state_dict())", False),
    ],
)
def test_methods_that_may_run_the_model_by_whatever_name(runs: str, is_said: bool) -> None:
    body = (
        "def make(self, model: FSDP, ids):\n"
        "    with unwrap_model_for_generation(model) as unwrapped, FSDP.summon_full_params(model):\n"
        f"        return {runs}\n"
    )
    assert (("FM332", "commented") in codes(body)) is is_said


BELOW = "def send(module):\n    for child in module.children():\n        send(child)\n"


@pytest.mark.parametrize(
    ("body", "is_kept"),
    [
        (BELOW + "    if isinstance(module, FSDP):\n{}", True),
        (
            "def send(model):\n    for module in model.modules():\n        if isinstance(module, FSDP):\n{}",
            True,
        ),
        # The outermost unit alone, whose embeddings are read.
        ("def send(module):\n    if isinstance(module, FSDP):\n{}", False),
        (BELOW + "    if module.ready:\n{}", False),
        # A method of another object by the same name is none of its own.
        ("def send(module):\n    client.send(module)\n    if isinstance(module, FSDP):\n{}", False),
    ],
)
def test_each_unit_of_a_framework_in_its_turn_shows_its_own_parameters(body: str, *, is_kept: bool) -> None:
    """What a model that needs to be sharded is sent by: all at once would not fit."""
    lines = [
        "        with FSDP.summon_full_params(module, recurse=False, writeback=False):",
        "            for name, param in module.named_parameters():",
        "                put(name, param)",
    ]
    deeper = "    " if "in model.modules" in body else ""
    text = (
        "from accelerate import Accelerator\n"
        "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n\n\n"
        + body.format("".join(f"{deeper}{line}\n" for line in lines))
        + "\n\naccelerator = Accelerator()\nmodel, other = accelerator.prepare(model, other)\nsend(model)\n"
    )
    after = turned(text, header="")
    given = "module, recurse=False, writeback=False" if is_kept else "module, writeback=False"
    assert f"with summon_full_params({given}):\n" in after


TAKEN = "with FSDP.summon_full_params(model):\n    {}\n"
DECAY = "with FSDP.summon_full_params(model):\n    decay = [p for p in model.parameters() if p.ndim > 1]\n"
FILLED = """\
def groups(model: FSDP):
    decay, rest = [], []
    with FSDP.summon_full_params(model):
        for name, p in model.named_parameters():
            (decay if p.ndim > 1 else rest).append(p)
    return [{"params": decay}, {"params": rest, "weight_decay": 0.0}]
"""


@pytest.mark.parametrize(
    "body",
    [
        DECAY + "optimizer = torch.optim.AdamW([{'params': decay}])\n",
        FILLED,
        TAKEN.format("named = dict(model.named_parameters())")
        + "for p in named.values():\n    p.mul_(0.9)\n",
        TAKEN.format("groups = get_param_groups(model, 0.1)") + "optimizer = torch.optim.AdamW(groups)\n",
        TAKEN.format("w = model.head.weight") + "score(w)\n",
        TAKEN.format("optimizer = torch.optim.SGD(model.parameters(), lr=0.1)"),
        TAKEN.format("optimizer = Lion([p for p in model.parameters() if p.requires_grad])"),
        TAKEN.format("optimizer = build_optimizer(model, 0.1)"),
        (
            "def take(model: FSDP):\n"
            "    with FSDP.summon_full_params(model):\n        return list(model.parameters())\n"
        ),
    ],
)
def test_parameters_of_the_context_that_are_used_outside_of_it(body: str) -> None:
    """An optimizer of them trains nothing, without an error: they are not the model's any more."""
    said = [use for use in uses(MODEL + body) if use.rule == "summon-full-params"]
    assert [(use.code, use.action) for use in said] == [("FM313", "rewritten"), ("FM313", "commented")]
    assert "nothing is trained, clipped or averaged" in said[1].becomes


@pytest.mark.parametrize(
    "body",
    [
        TAKEN.format("saved = {n: p.detach().clone() for n, p in model.named_parameters()}") + "put(saved)\n",
        TAKEN.format("shapes = {n: p.shape for n, p in model.named_parameters()}") + "print(shapes)\n",
        TAKEN.format("names = [n for n, p in model.named_parameters() if p.ndim > 1]") + "print(names)\n",
        TAKEN.format("count = len(list(model.parameters()))") + "print(count)\n",
        DECAY + "    for p in decay:\n        p.mul_(0.9)\n",
        DECAY + "decay = [p for n, p in model.named_parameters() if n in names]\nstep(decay)\n",
        "ps = list(model.parameters())\n"
        + TAKEN.format("x = norm(model)")
        + "optimizer = torch.optim.SGD(ps)\n",
        TAKEN.format("average = EMA(model.parameters())") + "average.step()\n",
        TAKEN.format("save_optimizer_state(model, optimizer)"),
    ],
)
def test_what_is_taken_of_the_context_and_no_parameter_of_it(body: str) -> None:
    assert ("FM313", "commented") not in codes(body)


SWAP = TAKEN.format("for p, q in zip(model.parameters(), average):\n        {}")


@pytest.mark.parametrize(
    ("body", "is_said"),
    [
        (SWAP.format("p.data = q.data"), True),
        (TAKEN.format("for n, p in model.named_parameters():\n        p.data = p.data * 0.5"), True),
        (TAKEN.format("model.head.weight.data = whole"), True),
        (TAKEN.format("torch.nn.utils.vector_to_parameters(vector, model.parameters())"), True),
        (SWAP.format("p.grad = p.grad * 0.5").replace("(model):", "(model, with_grads=True):"), True),
        (SWAP.format("p.data = q.data").replace("(model):", "(model, writeback=False):"), False),
        (SWAP.format("p.data.copy_(q.data)"), False),
        (SWAP.format("p.data *= 0.5"), False),
        (SWAP.format("p.grad = None"), False),
        (SWAP.format("batch.data = q"), False),
    ],
)
def test_what_is_put_into_parameters_and_not_written(body: str, *, is_said: bool) -> None:
    """FSDP1 lost it behind the context, without an error; the context of today keeps it."""
    said = [use.becomes for use in uses(f"{MODEL}import torch\n{body}") if use.action == "commented"]
    assert any("FSDP1 lost this" in each for each in said) is is_said
