"""The paths by which a sharded model comes to a use, each as a small project; and the same one unsharded."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsdp_migrate.source import scan_paths
from tests.source.projects import FSDP


pytestmark = pytest.mark.any_torch

USES = {
    "save": "state = {}.state_dict()",
    "clip": "torch.nn.utils.clip_grad_norm_({}.parameters(), 1.0)",
}
CLASS = (
    "class T:\n    def __init__(self, model):\n        self.model = model\n    def step(self):\n"
    "        USE self.model\n"
)
MODULE = "class Base:\n    def __init__(self, model):\n        self.model = model\n"
TRAIN = "def train(model):\n    USE model\n"
REGISTRY = (
    "REG = {}\ndef register(name):\n    def deco(cls):\n        REG[name] = cls\n        return cls\n"
    "    return deco\n"
)
OWN = "class T:\n    def __init__(self, net):\n        self.net = FSDP(net)\n"
LAYERS = "def shard(m):\n    for i, layer in enumerate(m.layers):\n        m.layers[i] = FSDP(layer)\n"
LISTED = "models = torch.nn.ModuleList()\nmodels.append(FSDP(net))\n"
STANDS = (
    "class W:\n    def __init__(self, inner):\n        self.inner = inner\n"
    "    def __getattr__(self, name):\n        return getattr(self.inner, name)\n"
)
PATHS = {
    # In one file.
    "a branch without its wrapper": {
        "main": (
            "class T:\n    def __init__(self, model, parts, on):\n        self.model = model\n"
            "        if on:\n            for name in parts:\n"
            "                setattr(self.model, name, FSDP(getattr(self.model, name)))\n"
            "        else:\n            self.model = torch.nn.parallel.DistributedDataParallel(self.model)\n"
            "    def step(self):\n        if hasattr(self.model, 'module'):\n            pass\n"
            "        else:\n            USE self.model\n"
        )
    },
    "getattr": {
        "main": f"{OWN}    def step(self):\n        model = getattr(self, 'net')\n        USE model\n"
    },
    "setattr": {
        "main": (
            "class T:\n    def __init__(self, net):\n        setattr(self, 'model', FSDP(net))\n"
            "    def step(self):\n        USE self.model\n"
        )
    },
    "property": {
        "main": (
            f"{OWN}    @property\n    def model(self):\n        return self.net\n    def step(self):\n"
            "        USE self.model\n"
        )
    },
    "unwrapped": {"main": "model = FSDP(net)\nraw = getattr(model, 'module', model)\nUSE raw\n"},
    "or": {"main": "model = FSDP(net)\nraw = model or net\nUSE raw\n"},
    "await": {
        "main": (
            "async def make(net):\n    return FSDP(net)\n"
            "async def main(net):\n    model = await make(net)\n    USE model\n"
        )
    },
    "generator": {
        "main": (
            "def make(net):\n    model = FSDP(net)\n    yield model\nfor model in make(net):\n    USE model\n"
        )
    },
    "context": {
        "main": (
            "@contextmanager\ndef whole(model):\n    yield model\n"
            "model = FSDP(net)\nwith whole(model) as inner:\n    USE inner\n"
        )
    },
    "part": {"main": "model = FSDP(net)\nencoder = model.encoder\nUSE encoder\n"},
    "part by its name": {"main": "model = FSDP(net)\nhead = getattr(model, name)\nUSE head\n"},
    "submodule": {"main": "model = FSDP(net)\npart = model.get_submodule('encoder')\nUSE part\n"},
    "children": {"main": "model = FSDP(net)\nfor name, part in model.named_children():\n    USE part\n"},
    "a replaced part": {"main": "net = Net()\nnet.encoder = FSDP(net.encoder)\nUSE net\n"},
    "a part by a function that puts it": {
        "main": "net = Net()\nset_module(net, name, FSDP(get_module(net, name)))\nUSE net\n"
    },
    "parts by a function": {"main": f"{LAYERS}net = Net()\nshard(net)\nUSE net\n"},
    "a module list": {"main": f"{LISTED}for m in models:\n    USE m\n"},
    "match": {"main": "model = FSDP(net)\nmatch model:\n    case torch.nn.Module() as m:\n        USE m\n"},
    "match of a dict": {
        "main": "state = {'model': FSDP(net)}\nmatch state:\n    case {'model': m}:\n        USE m\n"
    },
    "a call of what is made": {
        "main": "class T:\n    def __call__(self, model):\n        USE model\nT()(FSDP(net))\n"
    },
    "an item of an item": {
        "main": "models = defaultdict(dict)\nmodels['a']['m'] = FSDP(net)\nm = models['a']['m']\nUSE m\n"
    },
    "a list in a dict": {
        "main": (
            "models = {}\nmodels.setdefault('a', []).append(FSDP(net))\nfor m in models['a']:\n    USE m\n"
        )
    },
    "a queue": {"main": "kept = deque()\nkept.append(FSDP(net))\nm = kept.popleft()\nUSE m\n"},
    "dicts together": {"main": "state = base | {'model': FSDP(net)}\nUSE state['model']\n"},
    "no part": {
        "main": (
            "class T:\n    def __init__(self, net):\n        object.__setattr__(self, 'model', FSDP(net))\n"
            "    def step(self):\n        USE self.model\n"
        )
    },
    "no part, in the dict": {
        "main": (
            "class T:\n    def __init__(self, net):\n        self.__dict__['model'] = FSDP(net)\n"
            "    def step(self):\n        USE self.model\n"
        )
    },
    "what stands for it": {"main": f"{STANDS}model = W(FSDP(net))\nUSE model\n"},
    # Over files.
    "what stands for it, over files": {
        "main": "from a import W\nmodel = W(FSDP(net))\nUSE model\n",
        "a": STANDS,
    },
    "what stands for it, given on": {
        "main": "from a import W\nfrom b import train\nmodel = W(FSDP(net))\ntrain(model)\n",
        "a": STANDS,
        "b": TRAIN,
    },
    "an item of an item, over files": {
        "main": "from a import run\nmodels = defaultdict(dict)\nmodels['x']['m'] = FSDP(net)\nrun(models)\n",
        "a": "def run(models):\n    for k, d in models.items():\n        USE d['m']\n",
    },
    "parts, given back": {
        "main": "from a import shard\nmodel = shard(Net())\nUSE model\n",
        "a": f"{LAYERS}    return m\n",
    },
    "parts, in place": {
        "main": "from a import shard\nnet = Net()\nshard(net)\nUSE net\n",
        "a": LAYERS,
    },
    "parts by their names": {
        "main": "from a import shard\nnet = Net()\nshard(m=net)\nUSE net\n",
        "a": "def shard(m):\n    for n, part in m.named_children():\n        m.add_module(n, FSDP(part))\n",
    },
    "one part, in place": {
        "main": "from a import shard\nnet = Net()\nshard(net)\nUSE net\n",
        "a": "def shard(m):\n    m.encoder = FSDP(m.encoder)\n",
    },
    "parts by two functions": {
        "main": (
            "from a import build\nclass T:\n    def __init__(self, net):\n        self.net = net\n"
            "        build(self.net)\n    def step(self):\n        USE self.net\n"
        ),
        "a": "from b import shard\ndef build(m):\n    shard(m)\n",
        "b": LAYERS,
    },
    "a subclass": {
        "main": "from a import Own\nmodel = Own(net)\nUSE model\n",
        "a": "class Own(FSDP):\n    pass\n",
    },
    "a class out of a dict": {
        "main": "from a import Strategy\nmodel = Strategy().prepare(net)\nUSE model\n",
        "a": (
            "MAKERS = {'sharded': FSDP}\nclass Strategy:\n    def prepare(self, model):\n"
            "        return MAKERS['sharded'](model)\n"
        ),
    },
    "what an object's method gives": {
        "main": (
            "from a import T\ndef main(net):\n    t = T(net)\n    model = t.model_of()\n    USE model\n"
        ),
        "a": f"{OWN}    def model_of(self):\n        return self.net\n",
    },
    "a list of another file": {
        "main": "from a import MODELS\nMODELS.append(FSDP(net))\n",
        "a": "MODELS = []\ndef step():\n    for m in MODELS:\n        USE m\n",
    },
    "a list of an object": {
        "main": "from a import T\nt = T()\nt.models.append(FSDP(net))\nt.step()\n",
        "a": (
            "class T:\n    def __init__(self):\n        self.models = []\n    def step(self):\n"
            "        for m in self.models:\n            USE m\n"
        ),
    },
    "beside a name that is made of itself": {
        "main": "model = FSDP(net)\nfor x in loader:\n    x = x.to(device)\n    model(x)\nUSE model\n"
    },
    "a call of an object": {
        "main": "from a import T\nT()(FSDP(net))\n",
        "a": "class T:\n    def __call__(self, model):\n        USE model\n",
    },
    "match, over files": {
        "main": "from a import run\nrun((FSDP(net), 1))\n",
        "a": "def run(pair):\n    match pair:\n        case [m, _]:\n            USE m\n",
    },
    "made below match": {
        "main": "from a import wrap\nmodel = wrap(net, kind)\nUSE model\n",
        "a": (
            "def wrap(net, kind):\n    match kind:\n        case 'fsdp':\n            return FSDP(net)\n"
            "    return net\n"
        ),
    },
    "*args": {
        "main": "from a import train\ntrain(FSDP(net), 1)\n",
        "a": "def train(*args):\n    model, _ = args\n    USE model\n",
    },
    "**kwargs": {
        "main": "from a import train\ntrain(model=FSDP(net))\n",
        "a": "def train(**kwargs):\n    model = kwargs['model']\n    USE model\n",
    },
    "handed on": {
        "main": "from a import T\nT(model=FSDP(net)).step()\n",
        "a": (
            "from b import Base\nclass T(Base):\n    def __init__(self, *args, **kwargs):\n"
            "        super().__init__(*args, **kwargs)\n    def step(self):\n        USE self.model\n"
        ),
        "b": MODULE,
    },
    "by the base's name": {
        "main": "from a import T\nT(FSDP(net)).step()\n",
        "a": (
            "from b import Base\nclass T(Base):\n    def __init__(self, model):\n"
            "        Base.__init__(self, model)\n    def step(self):\n        USE self.model\n"
        ),
        "b": MODULE,
    },
    "an inherited constructor": {
        "main": "from a import T\nT(FSDP(net)).step()\n",
        "a": "from b import Base\nclass T(Base):\n    def step(self):\n        USE self.model\n",
        "b": MODULE,
    },
    "a method of a class below": {
        "main": "from a import Base\nclass T(Base):\n    def build(self, net):\n        return FSDP(net)\n",
        "a": (
            "class Base:\n    def __init__(self, net):\n        self.model = self.build(net)\n"
            "    def build(self, net):\n        raise NotImplementedError\n"
            "    def step(self):\n        USE self.model\n"
        ),
    },
    "self": {
        "main": f"from a import save\n{OWN}    def fit(self):\n        save(self)\n",
        "a": "def save(trainer):\n    USE trainer.net\n",
    },
    "an object in an object": {
        "main": (
            "from a import save\nfrom b import Base\nclass Run:\n    def __init__(self, state):\n"
            "        self.state = state\nsave(Run(Base(FSDP(net))))\n"
        ),
        "a": "def save(run):\n    USE run.state.model\n",
        "b": MODULE,
    },
    "a classmethod": {
        "main": "from a import T\nT.create(FSDP(net)).step()\n",
        "a": f"{CLASS}    @classmethod\n    def create(cls, model):\n        return cls(model)\n",
    },
    "an object of a function": {
        "main": "from a import get\nsaver = get()\nsaver.save(FSDP(net))\n",
        "a": "class S:\n    def save(self, model):\n        USE model\ndef get():\n    return S()\n",
    },
    "a global": {
        "main": "from a import set_model\nset_model(FSDP(net))\n",
        "a": (
            "_M = None\ndef set_model(model):\n    global _M\n    _M = model\n"
            "def get_model():\n    return _M\n"
        ),
        "b": "from a import get_model\nmodel = get_model()\nUSE model\n",
    },
    "an imported model": {"main": "model = FSDP(net)\n", "a": "from main import model\nUSE model\n"},
    "a module's attribute": {
        "main": "import a\na.model = FSDP(net)\n",
        "a": "model = None\n",
        "b": "import a\ndef step():\n    USE a.model\n",
    },
    "a dict of another file": {
        "main": "from a import STATE\nSTATE['model'] = FSDP(net)\n",
        "a": "STATE = {}\n",
        "b": "from a import STATE\ndef step():\n    USE STATE['model']\n",
    },
    "a class's attribute": {
        "main": "from a import G\nG.model = FSDP(net)\n",
        "a": "class G:\n    model = None\n",
        "b": "from a import G\ndef step():\n    USE G.model\n",
    },
    "a partial": {
        "main": "import functools\nfrom a import train\nrun = functools.partial(train, FSDP(net))\nrun()\n",
        "a": TRAIN,
    },
    "a thread": {
        "main": "from a import train\nmodel = FSDP(net)\nThread(target=train, args=(model,)).start()\n",
        "a": TRAIN,
    },
    "a pool": {"main": "from a import train\nmodel = FSDP(net)\npool.submit(train, model)\n", "a": TRAIN},
    "a lambda": {
        "main": "from a import train\nmodel = FSDP(net)\nrun = lambda m: train(m)\nrun(model)\n",
        "a": TRAIN,
    },
    "a dict of functions": {
        "main": "from a import train\nTASKS = {'a': train}\nmodel = FSDP(net)\nTASKS[name](model)\n",
        "a": TRAIN,
    },
    "a list of functions": {
        "main": (
            "from a import train\nHOOKS = [train]\nmodel = FSDP(net)\nfor hook in HOOKS:\n    hook(model)\n"
        ),
        "a": TRAIN,
    },
    "a registry": {
        "main": "from a import REG\nmodel = FSDP(net)\ncls = REG[name]\ncls(model).step()\n",
        "a": REGISTRY,
        "b": f"from a import register\n@register('t')\n{CLASS}",
    },
    "a function that gives a class": {
        "main": "from a import get\nmodel = FSDP(net)\nget(name)(model).step()\n",
        "a": f"{CLASS}def get(name):\n    return T\n",
    },
    "a function given by its place": {
        "main": "from a import train\nfrom b import launch\nlaunch(train, FSDP(net))\n",
        "a": TRAIN,
        "b": "def launch(fn, *args):\n    return fn(*args)\n",
    },
}
IMPORTS = "import torch\nfrom collections import defaultdict, deque\nfrom contextlib import contextmanager\n"
DDP = "from torch.nn.parallel import DistributedDataParallel as FSDP\n"


@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("use", USES)
def test_what_is_said_where_a_model_comes_to(tmp_path: Path, name: str, use: str) -> None:
    assert _said(tmp_path, PATHS[name], use, FSDP)
    assert not _said(tmp_path, PATHS[name], use, DDP)


def _said(folder: Path, files: dict[str, str], use: str, wraps: str) -> bool:
    """Tell whether anything surer than that it is to be looked at is said of the use."""
    for file, text in files.items():
        lines = []
        for line in f"{IMPORTS}{wraps}{text}".splitlines():
            start, mark, model = line.partition("USE ")
            lines.append(f"{start}{USES[use].format(model)}  # here" if mark else line)
        (folder / f"{file}.py").write_text("\n".join(lines) + "\n")
    uses = scan_paths([folder]).uses
    # Where each wrap is left to a person, the rest is kept until it is settled: as surely seen.
    stays = "stays as long as FSDP1 wraps the model. "
    found = (e for e in uses if e.action in {"rewritten", "commented"} or e.becomes.startswith(stays))
    return any(_line(each.path, each.line).endswith("# here") for each in found)


def _line(path: str, number: int) -> str:
    return Path(path).read_text(encoding="utf-8").splitlines()[number - 1]


PARTS = """\
def shard(m):
    {bound}
    for i, layer in enumerate(m.layers):
        m.layers[i] = FSDP(layer)
def main():
    net = Net()
    {above}
    shard(net)
    {below}
"""


@pytest.mark.parametrize("is_other_file", [False, True])
@pytest.mark.parametrize(
    ("bound", "above", "below", "is_said"),
    [
        ("pass", "pass", "USE net", True),
        ("pass", "USE net", "pass", False),
        ("m = copy.deepcopy(m)", "pass", "USE net", False),
    ],
)
def test_a_function_wraps_the_parts_of_what_it_is_given(
    tmp_path: Path, bound: str, above: str, below: str, *, is_said: bool, is_other_file: bool
) -> None:
    text = PARTS.format(bound=bound, above=above, below=below)
    made, _, main = text.partition("def main")
    files = {"a": made, "main": f"from a import shard\ndef main{main}"} if is_other_file else {"main": text}
    assert _said(tmp_path, files, "save", FSDP) is is_said
