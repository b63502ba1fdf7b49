"""The seccomp filter: its program does what its rules say, and the kernel accepts it."""

import errno
import platform
import shutil
import socket
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.sandbox.seccomp import (
    AF_UNIX,
    FIRST_UNKNOWN,
    HOST_RULES,
    MACHINES,
    NETWORK_FAMILIES,
    RULES,
    Condition,
    Equals,
    HasBits,
    NotIn,
    build_filter,
    socket_rules,
)

ALLOW, ERRNO, NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000
SHARED_RULES = (*RULES, *socket_rules(NETWORK_FAMILIES))
ALL_RULES = (*SHARED_RULES, *HOST_RULES)
INTERESTING = [
    *(0, 1, 2, 0o644, 0o4755, 0o2755, 0x40, 0x400000, 0x80, 0x5412, 0x541C, 10, 16, 17, 40),
    *(0x10000000, 0x20000000, 0x00020000, 0x7FFFFFFF, 2**32 - 1),
    *(0x40086602, 0x80086601, 0x40049409, 0x5000940F, 0x401C5820, 8, 0x5423, 1024),
]


def interpret(program: bytes, arch: int, number: int, arguments: list[int]) -> int:
    """Run a classic BPF program on one system call, as the kernel does."""
    data = struct.pack("=iIQ6Q", number if number < 2**31 else number - 2**32, arch, 0, *arguments)
    code = list(struct.iter_unpack("=HBBI", program))
    position = accumulator = 0
    while True:
        operation, if_true, if_false, value = code[position]
        position += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif operation == 0x54:
            accumulator &= value
        elif operation == 0x06:
            return value
        else:
            holds = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }[operation]
            position += if_true if holds else if_false


def holds(condition: Condition, arguments: list[int]) -> bool:
    value = arguments[condition.argument] & (2**32 - 1)
    match condition:
        case HasBits(mask=mask):
            return bool(value & mask)
        case NotIn(values=values):
            return value not in values
        case Equals(value=expected, mask=mask):
            return value & mask == expected


def expected(machine: str, number: int, arguments: list[int]) -> int:
    if number >= FIRST_UNKNOWN:
        return ERRNO | errno.ENOSYS
    for rule in ALL_RULES:
        if getattr(rule, machine) == number and all(holds(c, arguments) for c in rule.conditions):
            return NOTIFY if rule.notifies else ERRNO | rule.error
    return ALLOW


def test_every_rule_is_about_a_known_number() -> None:
    for rule in ALL_RULES:
        assert all(each is None or each < FIRST_UNKNOWN for each in (rule.x86_64, rule.aarch64))


def numbers(machine: str) -> list[int]:
    return [n for rule in ALL_RULES if (n := getattr(rule, machine)) is not None]


@given(data=st.data())
@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_the_program_does_what_the_rules_say(machine: str, data: st.DataObject) -> None:
    known = st.sampled_from(numbers(machine))
    number = data.draw(known | st.integers(0, 500) | st.integers(0x40000000, 0x400001FF))
    values = st.sampled_from(INTERESTING) | st.integers(0, 2**64 - 1)
    arguments = data.draw(st.lists(values, min_size=6, max_size=6))
    program = build_filter(ALL_RULES, machine)
    found = interpret(program, MACHINES[machine], number, arguments)
    assert found == expected(machine, number, arguments)


@pytest.mark.parametrize("machine", sorted(MACHINES))
def test_calls_of_another_abi_fail(machine: str) -> None:
    program = build_filter(RULES, machine)
    assert interpret(program, 0x40000003, 1, [0] * 6) == ERRNO | errno.ENOSYS


@pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no compiler to ask")
def test_numbers_are_those_of_the_kernel_headers() -> None:
    found = subprocess.run(
        ["gcc", "-E", "-dM", "-"],
        input="#include <asm/unistd.h>\n",
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    words = [line.split() for line in found.splitlines() if " __NR_" in line]
    defined = {word[1].removeprefix("__NR_"): word[2] for word in words if len(word) == 3}
    machine = platform.machine()
    for rule in ALL_RULES:
        number = getattr(rule, machine)
        if rule.name not in defined:
            assert number is None or number > 440, rule.name  # headers may be older than the call
        else:
            assert str(number) == defined[rule.name], rule.name


def test_no_machine_no_filter() -> None:
    with pytest.raises(ValueError, match="No seccomp filter for this machine: 'vax'"):
        build_filter(RULES, "vax")


TRY = """
import ctypes, errno, os, socket, sys
program = sys.stdin.buffer.read()
libc = ctypes.CDLL(None, use_errno=True)
class Program(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_char_p)]
filled = Program(len(program) // 8, program)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(filled), 0, 0) == 0, ctypes.get_errno()
def attempt(*arguments):
    ctypes.set_errno(0)
    return ctypes.get_errno() if libc.syscall(*arguments) < 0 else 0
import tempfile, threading, subprocess
os.chdir(tempfile.mkdtemp())
open("f", "w").close()
print(attempt(425, 1, 0), attempt(101, 0, 0, 0, 0), attempt(272, 0x10000000))
def refused(work):
    try:
        work()
    except OSError as error:
        return error.errno
print(refused(lambda: os.chmod("f", 0o4755)), refused(lambda: os.chmod("f", 0o755)))
print(refused(lambda: socket.socket(socket.AF_VSOCK)), refused(socket.socket))
threading.Thread(target=lambda: None).start()
subprocess.run(["true"], check=True)
os.rmdir if os.remove("f") else os.rmdir(os.getcwd())
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers below are of x86_64")
def test_the_kernel_takes_the_filter_and_ordinary_programs_run() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", TRY], input=build_filter(SHARED_RULES), capture_output=True
    )
    assert done.stderr == b""
    assert done.stdout.split() == [
        *(b"%d" % errno.ENOSYS, b"%d" % errno.EPERM, b"%d" % errno.EPERM),
        *(b"%d" % errno.EPERM, b"None"),
        *(b"%d" % errno.EAFNOSUPPORT, b"None"),
    ]


def test_pairs_of_unix_sockets_stay_allowed_without_any_family() -> None:
    for machine in MACHINES:
        program = build_filter(socket_rules(()), machine)
        by_name = {rule.name: getattr(rule, machine) for rule in socket_rules(())}
        arch = MACHINES[machine]
        for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC):
            arguments = [AF_UNIX, kind, 0, 0, 0, 0]
            assert interpret(program, arch, by_name["socketpair"], arguments) == ALLOW
        for kind in (socket.SOCK_DGRAM, socket.SOCK_RAW):  # these can leave their pair
            arguments = [AF_UNIX, kind, 0, 0, 0, 0]
            refused = interpret(program, arch, by_name["socketpair"], arguments)
            assert refused == ERRNO | errno.ESOCKTNOSUPPORT
        refused = interpret(program, arch, by_name["socket"], [AF_UNIX] + [0] * 5)
        assert refused == ERRNO | errno.EAFNOSUPPORT


def test_a_rule_without_conditions_is_the_last_of_its_system_call() -> None:
    always: set[str] = set()
    for rule in ALL_RULES:
        assert rule.name not in always
        if not rule.conditions:
            always.add(rule.name)
