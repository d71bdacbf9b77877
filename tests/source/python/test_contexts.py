"""What stands in a context, and what a context shows."""

from __future__ import annotations

import pytest

from tests.source.samples import IMPORTS, MODEL, codes, turned


pytestmark = pytest.mark.any_torch


def test_a_context_shows_it_too() -> None:
    body = (
        "def save(model):\n"
        "    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n"
        "        state = model.state_dict()\n"
        "    model.load_state_dict(state)\n"
    )
    after = turned(body)
    assert "state = get_model_state_dict(model)\n" in after
    assert "load_model_state_dict(model, state)" in after


def test_whole_parameters_have_a_whole_state() -> None:
    body = "with FSDP.summon_full_params(m):\n    state = m.state_dict()\n"
    assert "state = m.state_dict()" in turned(body)


TWICE = """\
def f(model):
    c = FullStateDictConfig(True, True)
    FSDP.optim_state_dict(model)
    c = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, c):
        s = model.state_dict()
"""


OF_SELF = """\
class A:
    def __init__(self):
        self.c = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)

    def f(self, model):
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, self.c):
            s = model.state_dict()
"""


OF_CLASS = """\
class A:
    c = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)

    def f(self, model):
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, self.c):
            s = model.state_dict()
"""


KIND = """\
def f(model):
    kind = StateDictType.FULL_STATE_DICT
    with FSDP.state_dict_type(model, kind, FullStateDictConfig(True, True)):
        s = model.state_dict()
"""


IN_ONE_BRANCH = """\
def f(model):
    c = FullStateDictConfig()
    if a:
        c = FullStateDictConfig(rank0_only=True)
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, c):
        s = model.state_dict()
"""


OPTIONS = "options=StateDictOptions(full_state_dict=True, cpu_offload=True)"


@pytest.mark.parametrize("body", [TWICE, OF_SELF, OF_CLASS, KIND])
def test_options_that_stand_above_are_known(body: str) -> None:
    after = turned(body)
    assert f"s = get_model_state_dict(model, {OPTIONS})" in after
    assert "FM307" not in after


HELD = """\
def f(model, opts, whole):
    {above}
    c = FullStateDictConfig(offload_to_cpu={value}, rank0_only=True)
    {between}
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, c):
        s = model.state_dict()
"""
OTHER = "o = FullOptimStateDictConfig(rank0_only=True)"
JUST_ABOVE = (
    ("pass", "torch.cuda.is_available()", OTHER),
    ("pass", "torch.cuda.is_available()", "run()"),
    ("pass", "not torch.cuda.is_available() and whole", "run()"),
    ("own = ask()", "own", "run()"),
    ("pass", "opts.offload", OTHER),
)
NOT_SURE = (
    ("pass", "ask()", OTHER),
    ("pass", "opts.pop()", OTHER),
    ("pass", "opts.offload", "opts.offload = False"),
    ("pass", "opts.offload", "run(opts)"),
    ("pass", "whole", "whole = False"),
    ("own = ask()", "own", "own = ask()"),
    ("pass", "GLOBAL", "run()"),
)


@pytest.mark.parametrize(("above", "value", "between"), JUST_ABOVE)
def test_options_that_a_line_above_reads_are_as_those_of_the_call(
    above: str, value: str, between: str
) -> None:
    after = turned(HELD.format(above=above, value=value, between=between))
    assert f"s = full_state_dict(model, rank0_only=True, offload_to_cpu={value})" in after
    assert "c = FullStateDictConfig" not in after
    assert "FM307" not in after


@pytest.mark.parametrize(("above", "value", "between"), NOT_SURE)
def test_options_that_may_be_others_by_then_are_not_known(above: str, value: str, between: str) -> None:
    body = HELD.format(above=above, value=value, between=between)
    assert ("FM307", "commented") in codes(body)
    assert f"offload_to_cpu={value}, rank0_only=True)" in turned(body)


OF_MODULE = """\
{}
C = FullStateDictConfig(offload_to_cpu={}, rank0_only=True)
def f(model{}):
    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, C):
        s = model.state_dict()
"""


@pytest.mark.parametrize(
    ("above", "value", "given", "is_known"),
    [
        ("pass", "torch.cuda.is_available()", "", True),
        ("ON = ask()", "ON", "", True),
        ("ON = ask()", "ON", ", ON", False),
        ("ON = ask()\nON = not ON", "ON", "", False),
        ("pass", "ask()", "", False),
    ],
)
def test_what_a_module_binds_once_is_known_in_its_functions(
    above: str, value: str, given: str, *, is_known: bool
) -> None:
    after = turned(OF_MODULE.format(above, value, given))
    assert ("FM307" not in after) is is_known
    assert (f"s = full_state_dict(model, rank0_only=True, offload_to_cpu={value})" in after) is is_known


def test_a_line_of_options_that_is_read_elsewhere_too_stays() -> None:
    body = HELD.format(above="pass", value="torch.cuda.is_available()", between=OTHER)
    after = turned(f"{body}    return c\n")
    assert "c = FullStateDictConfig(offload_to_cpu=torch.cuda.is_available(), rank0_only=True)" in after
    assert "s = full_state_dict(model, rank0_only=True, offload_to_cpu=torch.cuda.is_available())" in after


@pytest.mark.parametrize("value", ["whole", "torch.cuda.is_available()"])
def test_names_of_another_method_are_not_known_here(value: str) -> None:
    body = OF_SELF.replace("(self):", "(self, whole):").replace(
        "offload_to_cpu=True", f"offload_to_cpu={value}"
    )
    assert ("FM307", "commented") in codes(body)


def test_what_a_setter_says_of_names_is_not_known_in_other_functions() -> None:
    body = (
        "def start(model, whole):\n    c = FullStateDictConfig(offload_to_cpu=whole)\n"
        "    FSDP.set_state_dict_type(model, StateDictType.FULL_STATE_DICT, c)\n"
        "def save(model):\n    return model.state_dict()\n"
    )
    assert ("FM307", "commented") in codes(body)


@pytest.mark.parametrize("more", ["class B(A):\n    c = None\n", "A.c = None\n"])
def test_options_of_a_class_that_are_set_elsewhere_too_are_not(more: str) -> None:
    assert ("FM307", "commented") in codes(OF_CLASS + more)


def test_options_of_one_branch_alone_are_not() -> None:
    assert ("FM307", "commented") in codes(IN_ONE_BRANCH)


def test_in_a_context_that_may_be_anothers_nothing_is_turned() -> None:
    header = f"{IMPORTS}if fairscale:\n    from fairscale.nn import FullyShardedDataParallel as FSDP\n\n"
    body = (
        "def save(model):\n"
        "    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):\n"
        "        return model.state_dict()\n"
    )
    after = turned(body, header)
    assert "FM307" in after
    assert "        return model.state_dict()" in after


@pytest.mark.parametrize("call", ["m.encoder(x)", "m.decode(x)", "m.model.embed_tokens(x)"])
def test_a_part_that_runs_among_whole_parameters_is_said(call: str) -> None:
    assert ("FM332", "commented") in codes(f"with FSDP.summon_full_params(m):\n    y = {call}\n")


def test_whoever_asks_among_whole_parameters_runs_nothing() -> None:
    body = "with FSDP.summon_full_params(m):\n    y = m.get_input_embeddings(), m.named_parameters()\n"
    assert ("FM313", "rewritten") in codes(body)


MAYBE = """\
def whole(model, on):
    if on:
        return FSDP.summon_full_params(model)
    return nullcontext()

def save(model, on, out):
    {}
    with {}:
        getattr(model, "module", model).save_pretrained(out)
        state = model.state_dict()

save(FSDP(net), on, out)
"""


@pytest.mark.parametrize(
    ("before", "context", "is_said"),
    [
        ("ctx = FSDP.summon_full_params(model) if on else nullcontext()", "ctx", False),
        ("ctx = whole(model, on)", "ctx", False),
        ("pass", "whole(model, on)", False),
        ("ctx = nullcontext()", "ctx", True),
        ("ctx = torch.no_grad() if on else nullcontext()", "ctx", True),
    ],
)
def test_a_context_that_a_variable_holds_may_show_whole_parameters(
    before: str, context: str, is_said: bool
) -> None:
    after = turned(MAYBE.format(before, context))
    assert ("FM308 `save_pretrained`" in after) is is_said
    assert ("get_model_state_dict(" in after.split("def save")[1]) is is_said
    assert is_said or "FM313" in after


@pytest.mark.parametrize(("given", "is_seen"), [("o", True), ("p", False)])
def test_what_is_given_beside_the_model_is_an_optimizer_by_any_name(given: str, *, is_seen: bool) -> None:
    body = (
        "model = FSDP(net)\nwith FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n"
        "    model.load_state_dict(x)\n"
        f"    o.load_state_dict(FSDP.optim_state_dict_to_load(model, {given}, y))\n"
    )
    assert ("FM307" in turned(body)) is not is_seen


SHARDED = "ShardedStateDictConfig(offload_to_cpu=True)"
ENTERED = (
    f"{MODEL}@contextlib.contextmanager\ndef own(model):\n"
    f"    with FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, {SHARDED}):\n        yield\n"
)


def test_a_context_that_a_generator_enters_holds_in_the_blocks_of_its_callers() -> None:
    """What is below it was given the default, whole on every rank: a sharded save became a whole one."""
    block = (
        "with own(model):\n    state = model.state_dict()\n    other = FSDP.optim_state_dict(model, opt)\n"
    )
    after = turned(f"{ENTERED}{block}plain = model.state_dict()\n")
    assert "state = get_model_state_dict(model, options=StateDictOptions(cpu_offload=True))" in after
    assert '= sharded_state_dict(model, opt, cpu_offload=True)["optimizer"]' in after
    assert "plain = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))" in after
    assert "FM307 the states in the blocks that enter this are turned" in after


def test_a_context_that_a_method_enters_is_that_of_whoever_calls_it() -> None:
    own = ENTERED.replace("def own(model", "    def own(self, model").replace("@", "class S:\n    @")
    own = own.replace("    with FSDP", "        with FSDP").replace("        yield", "            yield")
    after = turned(f"{own}with saver.own(model):\n    state = model.state_dict()\n")
    assert "state = get_model_state_dict(model, options=StateDictOptions(cpu_offload=True))" in after


@pytest.mark.parametrize(
    "block",
    [
        "with own(model):\n    save(model)\n",  # what it calls asks there
        "",  # other files enter it
    ],
)
def test_what_may_run_in_such_a_context_is_not_given_the_default(block: str) -> None:
    after = turned(f"{ENTERED}def save(model: FSDP):\n    state = model.state_dict()\n{block}")
    assert "state = model.state_dict()" in after
    assert "FM308 what this gives was decided by contexts" in after


def test_of_two_types_that_a_generator_may_enter_none_is_taken() -> None:
    two = ENTERED.replace("    with FSDP", "    if x:\n     with FSDP").replace(
        "        yield", "      yield"
    )
    whole = "    with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT):\n        yield\n"
    after = turned(f"{two}{whole}with own(model):\n    state = model.state_dict()\n")
    assert "state = model.state_dict()" in after


RETURNED = (
    f"{MODEL}def own(model):\n"
    f"    return FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, {SHARDED})\n"
)
OFFLOADED = "= get_model_state_dict(model, options=StateDictOptions(cpu_offload=True))"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (f"{RETURNED}with own(model):\n", "and return contextlib.nullcontext(); see"),
        (f"{RETURNED}ctx = own(model)\nwith ctx:\n", "and return contextlib.nullcontext(); see"),
        (
            (
                f"{MODEL}ctx = FSDP.state_dict_type(model, StateDictType.SHARDED_STATE_DICT, {SHARDED})\n"
                "with ctx:\n"
            ),
            "Take this context away; see",
        ),
    ],
)
def test_a_context_that_is_returned_or_held_holds_where_it_is_entered(body: str, said: str) -> None:
    block = "    state = model.state_dict()\n    other = FSDP.optim_state_dict(model, opt)\n"
    after = turned(f"{body}{block}plain = model.state_dict()\n")
    assert f"state {OFFLOADED}" in after
    assert '= sharded_state_dict(model, opt, cpu_offload=True)["optimizer"]' in after
    assert "plain = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))" in after
    assert said in after
    assert "FM308" not in after


def test_a_context_that_a_method_returns_is_that_of_whoever_calls_it() -> None:
    body = (
        RETURNED.removeprefix(MODEL).replace("def own(model", "def own(self, model").replace("\n", "\n    ")
    )
    after = turned(f"{MODEL}class S:\n    {body}\nwith saver.own(model):\n    state = model.state_dict()\n")
    assert f"state {OFFLOADED}" in after


@pytest.mark.parametrize(
    "below",
    [
        "with own(model):\n    save(model)\n",
        "with ExitStack() as stack:\n    stack.enter_context(own(model))\n    save(model)\n",
        "",  # other files enter it
    ],
)
def test_what_may_run_in_a_returned_context_is_not_given_the_default(below: str) -> None:
    after = turned(f"{RETURNED}def save(model: FSDP):\n    state = model.state_dict()\n{below}")
    assert "state = model.state_dict()" in after
    assert "FM308 what this gives was decided by contexts" in after


KIND = "StateDictType.FULL_STATE_DICT"
CONFIG = "FullStateDictConfig(offload_to_cpu=True, rank0_only=True)"
BOTH = f"({KIND}, {CONFIG})"
NAMED = f"state_dict_type={KIND}, state_dict_config={CONFIG}"
SAVE = """\
{above}class T:
{in_class}
    def __init__(self, net):
        self.model = FSDP(net)
        {in_init}

    def save(self):
        {here}
        with FSDP.state_dict_type(self.model, {given}):
            return self.model.state_dict()
"""
SAVED = (
    "        return get_model_state_dict(self.model, options=StateDictOptions(full_state_dict=True, "
    "cpu_offload=True))\n"
)


def _save(given: str, *, above: str = "", in_class: str = "x = 1", in_init: str = "", here: str = "") -> str:
    return SAVE.format(
        given=given,
        above=f"{above}\n\n" if above else "",
        in_class=f"    {in_class}\n",
        in_init=in_init or "self.x = 1",
        here=here or "x = 1",
    )


@pytest.mark.parametrize(
    "body",
    [
        _save("*cfg", here=f"cfg = {BOTH}"),
        _save("*cfg", here=f"cfg = [{KIND}, {CONFIG}]"),
        _save(f"*{BOTH}"),
        _save("*FULL", above=f"FULL = {BOTH}"),
        _save("*self.full", in_class=f"full = {BOTH}"),
        _save("*self.full", in_init=f"self.full = {BOTH}"),
        _save("self.full[0], self.full[1]", in_init=f"self.full = {BOTH}"),
        _save("*KINDS['full']", above=f"KINDS = {{'full': {BOTH}, 'other': (1, 2)}}"),
        _save("*KINDS['full']", above=f"FULL = {BOTH}\nKINDS = {{'full': FULL}}"),
        _save("kind, config", above=f"KINDS = {{'full': {BOTH}}}", here="kind, config = KINDS['full']"),
        _save("**kw", here=f"kw = dict({NAMED})"),
        _save("**kw", here=f"kw = {{'state_dict_type': {KIND}, 'state_dict_config': {CONFIG}}}"),
        _save(f"{KIND}, **CONFIGS", above=f"CONFIGS = dict(state_dict_config={CONFIG})"),
        _save("*cfg", here=f"config = {CONFIG}\n        cfg = ({KIND}, config)"),
    ],
)
def test_what_a_tuple_or_a_dict_above_gives(body: str) -> None:
    after = turned(body)
    assert SAVED in after
    assert "FSDP.state_dict_type" not in after


def test_a_tuple_that_nothing_else_reads_goes() -> None:
    after = turned(
        _save("*cfg", here=f"cfg = {BOTH}") + f"\ndef other():\n    cfg = {BOTH}\n    return cfg\n"
    )
    assert after.count("cfg = ") == 1


@pytest.mark.parametrize(
    "body",
    [
        _save("*KINDS[kind]", above=f"KINDS = {{'full': {BOTH}}}"),
        _save("*KINDS['full']", above=f"KINDS = {{'full': {BOTH}}}\nKINDS['full'] = other()"),
        _save("**kw", here=f"kw = dict({NAMED})\n        kw.update(more)"),
        _save("**kw", here=f"kw = dict({NAMED}, **more)"),
        _save("*cfg", here=f"cfg = {BOTH} if full else other"),
        _save("*cfg", here=f"cfg = [{KIND}]\n        cfg.append(config)"),
        _save("*cfg", here=f"cfg = ({KIND}, *configs)"),
        _save("*cfg, **kw", here=f"cfg = {BOTH}\n        kw = dict({NAMED})"),
        _save("*cfg", here=f"cfg = ({KIND}, FullStateDictConfig(rank0_only=flag()))"),
    ],
)
def test_what_is_known_only_when_it_runs(body: str) -> None:
    assert ("FM307", "commented") in codes(body)


PARTIAL = "functools.partial(FSDP.state_dict_type, {}, StateDictType.SHARDED_STATE_DICT)"
NAMELESS = "lambda: FSDP.state_dict_type({}, StateDictType.SHARDED_STATE_DICT)"
RUN = "class Run:\n    def __init__(self, net):\n        self.net = FSDP(net)\n        self.sharded = {}\n\n"


@pytest.mark.parametrize("made", [PARTIAL, NAMELESS])
def test_a_context_that_is_made_where_a_block_calls_for_it(made: str) -> None:
    """States in it were taken for FSDP1's default: a sharded save became a whole one, without a word."""
    block = "with sharded():\n    state = model.state_dict()\n    other = FSDP.optim_state_dict(model, opt)\n"
    after = turned(f"{MODEL}sharded = {made.format('model')}\n{block}plain = model.state_dict()\n")
    assert "state = get_model_state_dict(model)\n" in after
    assert '= sharded_state_dict(model, opt, cpu_offload=True)["optimizer"]' in after
    assert "plain = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))" in after
    assert "FM307 the states in the blocks that enter this are turned, by its type" in after
    assert "Take this context away, and the `with` that calls it; see" in after
    assert "FM303" not in after
    held = f"{RUN.format(made.format('self.net'))}    def save(self):\n        with self.sharded():\n"
    assert "state = get_model_state_dict(self.net)\n" in turned(
        f"{held}            state = self.net.state_dict()\n"
    )


@pytest.mark.parametrize(
    ("made", "enters"),
    [
        (
            "functools.partial(FSDP.state_dict_type, state_dict_type=StateDictType.FULL_STATE_DICT)",
            "c(model)",
        ),
        (PARTIAL.format("model").replace("SHARDED", "LOCAL"), "c()"),
        (PARTIAL.format("model"), "stack.enter_context(c())"),
        (NAMELESS.format("model"), "stack.enter_context(c())"),
        (NAMELESS.format("model").removeprefix("lambda: "), "stack.enter_context(c)"),
        (NAMELESS.format("model").removeprefix("lambda: "), "nullcontext() if x else c"),
    ],
)
def test_a_context_that_is_made_before_and_not_seen_in_whole(made: str, enters: str) -> None:
    enters = f"with {enters}:\n    " if "stack" not in enters else f"{enters}\n"
    body = f"{MODEL}above = model.state_dict()\nc = {made}\n{enters}state = model.state_dict()\n"
    after = turned(body)
    assert "above = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))" in after
    assert "state = model.state_dict()" in after
    assert "FM308 what this gives was decided by contexts" in after
    assert "FM307" in after
    assert "FM303" not in after


def test_a_stack_that_may_enter_fsdp1s_default_changes_nothing() -> None:
    whole = "FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT)"
    after = turned(f"{MODEL}stack.enter_context({whole})\nstate = model.state_dict()\n")
    assert "state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))" in after
    assert "FM308" not in after
