"""A seccomp filter: system calls that no command in a sandbox needs, as a BPF program.

The filter allows every system call except those listed in `RULES`: interfaces that reach
other processes (`ptrace`), that change mounts or namespaces, that load code into the kernel
(`bpf`, modules), and those with a long record of kernel bugs (`io_uring`, `userfaultfd`,
`perf_event_open`, keyrings). A denied call fails with EPERM, or with ENOSYS where programs
know how to do without it; so does a call that is newer than this module. `HOST_RULES` are for
commands without namespaces of their own.

Numbers come from the kernel's own tables and never change. A machine that is not listed in
`MACHINES` has no filter, and a sandbox that promises one is not available there.
"""

import errno
import platform
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from weakincentives.sandbox.attribute_calls import CALLS

AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
_SOCK_STREAM, _SOCK_SEQPACKET, _SOCK_NONBLOCK, _SOCK_CLOEXEC = 1, 5, 0x800, 0x80000
_CONNECTED_PAIRS = tuple(
    kind | flags
    for kind in (_SOCK_STREAM, _SOCK_SEQPACKET)
    for flags in (0, _SOCK_NONBLOCK, _SOCK_CLOEXEC, _SOCK_NONBLOCK | _SOCK_CLOEXEC)
)

_NEW_NAMESPACES = 0x7E020000  # every CLONE_NEW* flag that clone(2) knows
_NEW_TIME_NAMESPACE = 0x80  # in clone(2) these bits are the exit signal
_SET_ID_BITS = 0o6000
_CREATES = 0x400040  # O_CREAT, and the bit of O_TMPFILE that is its own
_PRIO_USER, _IOPRIO_WHO_USER = 2, 3
_TIOCSETD = 0x5423
_F_SETLEASE = 1024
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # both put characters into a terminal's input


@dataclass(frozen=True, slots=True)
class HasBits:
    """Holds if an argument of the system call has any of these bits."""

    argument: int
    mask: int


@dataclass(frozen=True, slots=True)
class NotIn:
    """Holds if an argument of the system call is none of these values."""

    argument: int
    values: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Equals:
    """Holds if an argument of the system call, or the masked part of it, has this value."""

    argument: int
    value: int
    mask: int = 0xFFFFFFFF


Condition = HasBits | NotIn | Equals


@dataclass(frozen=True, slots=True)
class Rule:
    """A system call that fails with `error`, or notifies, if all conditions hold.

    Of several rules for one call, the first that applies counts.

    Args:
        name: Its name in the manual.
        x86_64: Its number there; None if the machine has no such call.
        aarch64: Its number there.
        error: The errno that it fails with.
        conditions: What must hold; a rule without conditions always applies.
        notifies: Whether the filter's listener decides about the call instead.
    """

    name: str
    x86_64: int | None
    aarch64: int | None
    error: int = errno.EPERM
    conditions: tuple[Condition, ...] = ()
    notifies: bool = False


def calls(*rows: str, error: int = errno.EPERM) -> tuple[Rule, ...]:
    """Return rules for all uses of some calls.

    A row has a name and the numbers on x86_64 and aarch64; `-` where there is no such call.
    """
    return tuple(
        Rule(name, *(None if each == "-" else int(each) for each in numbers), error=error)
        for name, *numbers in map(str.split, rows)
    )


MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The processor architectures, and how seccomp calls them."""

FIRST_UNKNOWN = 470
"""Numbers from here on fail: what they do is not known here. That includes the x32 ABI."""

RULES = (
    # other processes
    *calls("ptrace 101 117", "process_vm_readv 310 270", "process_vm_writev 311 271"),
    *calls("process_madvise 440 440", "pidfd_getfd 438 438", "kcmp 312 272"),
    # mounts and namespaces
    *calls("mount 165 40", "umount2 166 39", "pivot_root 155 41", "chroot 161 51"),
    *calls("open_tree 428 428", "open_tree_attr 467 467", "move_mount 429 429", "fsopen 430 430"),
    *calls("fsconfig 431 431", "fsmount 432 432", "fspick 433 433", "mount_setattr 442 442"),
    *calls("setns 308 268"),
    Rule("unshare", 272, 97, conditions=(HasBits(0, _NEW_NAMESPACES | _NEW_TIME_NAMESPACE),)),
    Rule("clone", 56, 220, conditions=(HasBits(0, _NEW_NAMESPACES),)),
    # its flags are in memory, where a filter cannot look; libraries fall back to clone
    *calls("clone3 435 435", error=errno.ENOSYS),
    # interfaces of the kernel with a long record of bugs
    *calls("io_uring_setup 425 425", "io_uring_enter 426 426", error=errno.ENOSYS),
    *calls("io_uring_register 427 427", error=errno.ENOSYS),
    *calls("bpf 321 280", "perf_event_open 298 241", "userfaultfd 323 282", "add_key 248 217"),
    *calls("request_key 249 218", "keyctl 250 219", "fanotify_init 300 262"),
    *calls("open_by_handle_at 304 265", "lookup_dcookie 212 18", "move_pages 279 239"),
    *calls("migrate_pages 256 238", "modify_ldt 154 -"),
    # the machine as a whole
    *calls("kexec_load 246 104", "kexec_file_load 320 294", "init_module 175 105"),
    *calls("finit_module 313 273", "delete_module 176 106", "reboot 169 142", "swapon 167 224"),
    *calls("swapoff 168 225", "acct 163 89", "quotactl 179 60", "quotactl_fd 443 443"),
    *calls("settimeofday 164 170", "clock_settime 227 112", "clock_adjtime 305 266"),
    *calls("adjtimex 159 171", "syslog 103 116", "sethostname 170 161", "setdomainname 171 162"),
    *calls("vhangup 153 58", "iopl 172 -", "ioperm 173 -"),
    # typing into the terminal of whoever looks at it
    Rule("ioctl", 16, 29, conditions=(Equals(1, _TIOCSTI),)),
    Rule("ioctl", 16, 29, conditions=(Equals(1, _TIOCLINUX),)),
    # line disciplines are drivers, for modems and the like
    Rule("ioctl", 16, 29, conditions=(Equals(1, _TIOCSETD),)),
    # a set-user-ID file in the workspace belongs to whoever runs the agent
    Rule("chmod", 90, None, conditions=(HasBits(1, _SET_ID_BITS),)),
    Rule("fchmod", 91, 52, conditions=(HasBits(1, _SET_ID_BITS),)),
    Rule("fchmodat", 268, 53, conditions=(HasBits(2, _SET_ID_BITS),)),
    Rule("fchmodat2", 452, 452, conditions=(HasBits(2, _SET_ID_BITS),)),
    Rule("creat", 85, None, conditions=(HasBits(1, _SET_ID_BITS),)),
    Rule("mknod", 133, None, conditions=(HasBits(1, _SET_ID_BITS),)),
    Rule("mknodat", 259, 33, conditions=(HasBits(2, _SET_ID_BITS),)),
    Rule("open", 2, None, conditions=(HasBits(1, _CREATES), HasBits(2, _SET_ID_BITS))),
    Rule("openat", 257, 56, conditions=(HasBits(2, _CREATES), HasBits(3, _SET_ID_BITS))),
    # its mode is in memory too
    *calls("openat2 437 437", error=errno.ENOSYS),
)

_NEW_LISTENER = 1 << 3
_IO_TYPE = 0xFF00  # the bits of an ioctl that say which part of the kernel it belongs to
_FILE_SYSTEM_IOCTLS = {
    "f": (0x80086601, 0xC020660B, 0xC0046686),  # FS_IOC_GETFLAGS, FS_IOC_FIEMAP, measure verity
    "X": (0x801C581F,),  # FS_IOC_FSGETXATTR
    "v": (0x80087601,),  # FS_IOC_GETVERSION
    "r": (0x80047210,),  # FAT_IOCTL_GET_ATTRIBUTES
    # clone and deduplicate, which need a writable file
    "\x94": (0x40049409, 0x4020940D, 0xC0189436),
    "\x97": (),  # ceph
    "\xbc": (),  # bcachefs
    "\xcf": (),  # cifs
    "\xf5": (),  # f2fs
}
"""The ioctls that file systems know, by type, and those among them that stay allowed."""

HOST_RULES = (
    # attributes of files: through any descriptor, also one that can only be read
    *(
        Rule(
            "ioctl", 16, 29, errno.ENOTTY, (Equals(1, ord(each) << 8, _IO_TYPE), NotIn(1, allowed))
        )
        for each, allowed in _FILE_SYSTEM_IOCTLS.items()
    ),
    *calls("file_setattr 469 469", error=errno.ENOSYS),
    # a second listener would decide before that of the sandbox
    Rule("seccomp", 317, 277, errno.EBUSY, (HasBits(1, _NEW_LISTENER),)),
    # whoever opens a file waits for the process that has a lease on it
    Rule("fcntl", 72, 25, errno.EINVAL, (Equals(1, _F_SETLEASE),)),
    # limits and priorities of other processes
    Rule("prlimit64", 302, 261, conditions=(NotIn(0, (0,)),)),
    Rule("setpriority", 141, 140, conditions=(NotIn(1, (0,)),)),
    Rule("setpriority", 141, 140, conditions=(Equals(0, _PRIO_USER),)),
    Rule("ioprio_set", 251, 30, conditions=(NotIn(1, (0,)),)),
    Rule("ioprio_set", 251, 30, conditions=(Equals(0, _IOPRIO_WHO_USER),)),
    Rule("sched_setscheduler", 144, 119, conditions=(NotIn(0, (0,)),)),
    Rule("sched_setparam", 142, 118, conditions=(NotIn(0, (0,)),)),
    Rule("sched_setattr", 314, 274, conditions=(NotIn(0, (0,)),)),
    # memory, semaphores and messages of other processes
    *calls("shmget 29 194", "shmat 30 196", "shmctl 31 195", "semget 64 190", error=errno.ENOSYS),
    *calls("semop 65 193", "semctl 66 191", "semtimedop 220 192", error=errno.ENOSYS),
    *calls("msgget 68 186", "msgsnd 69 189", "msgrcv 70 188", "msgctl 71 187", error=errno.ENOSYS),
    *calls("mq_open 240 180", "mq_unlink 241 181", error=errno.ENOSYS),
    # the listener makes these calls itself, on files that the command may write
    *(Rule(*call, notifies=True) for call in CALLS),
)
"""Calls that reach what a command shares with the host if it has no namespaces of its own."""

NETWORK_FAMILIES = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)
"""Socket families that a network namespace isolates; others (AF_VSOCK) would leave it."""


def socket_rules(families: Sequence[int]) -> tuple[Rule, ...]:
    """Return rules that allow sockets of these families only; pairs of AF_UNIX stay allowed.

    Without AF_UNIX among the families, the pairs are streams: a datagram socket can leave its
    pair, and send to any socket of the host that has a path.
    """
    refused = (NotIn(0, tuple(families)),)
    pairs = (NotIn(0, tuple({AF_UNIX, *families})),)
    rules = (
        Rule("socket", 41, 198, errno.EAFNOSUPPORT, refused),
        Rule("socketpair", 53, 199, errno.EAFNOSUPPORT, pairs),
    )
    if AF_UNIX in families:
        return rules
    leaving = (NotIn(1, _CONNECTED_PAIRS),)
    return (*rules, Rule("socketpair", 53, 199, errno.ESOCKTNOSUPPORT, leaving))


def is_supported(machine: str | None = None) -> bool:
    """Return whether there is a filter for this machine."""
    return (machine or platform.machine()) in MACHINES


def build_filter(rules: Iterable[Rule] = RULES, machine: str | None = None) -> bytes:
    """Return the BPF program that denies what the rules list.

    Raises:
        ValueError: This machine is not supported.
    """
    name = machine or platform.machine()
    if name not in MACHINES:
        raise ValueError(f"No seccomp filter for this machine: {name!r}")
    return b"".join(_assemble(MACHINES[name], _by_number(rules, name)))


# --- classic BPF, as in linux/filter.h and linux/seccomp.h ---

_LOAD, _AND, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT = 0x20, 0x54, 0x15, 0x35, 0x45
_RETURN = 0x06
_NUMBER_OFFSET, _ARCH_OFFSET, _ARGUMENTS_OFFSET = 0, 4, 16
_ALLOW, _ERRNO, _NOTIFY = 0x7FFF0000, 0x00050000, 0x7FC00000


def _assemble(machine: int, rules: Sequence[tuple[int, list[Rule]]]) -> list[bytes]:
    program = [
        _instruction(_LOAD, _ARCH_OFFSET),
        _instruction(_JUMP_EQUAL, machine, 1, 0),
        _deny(errno.ENOSYS),  # a 32-bit call, whose numbers mean something else
        _instruction(_LOAD, _NUMBER_OFFSET),
        _instruction(_JUMP_AT_LEAST, FIRST_UNKNOWN, 0, 1),
        _deny(errno.ENOSYS),
    ]
    for number, alternatives in rules:
        block = _block(alternatives)
        program += [_instruction(_JUMP_EQUAL, number, 0, len(block)), *block]
    return [*program, _instruction(_RETURN, _ALLOW)]


def _block(alternatives: Sequence[Rule]) -> list[bytes]:
    """Return what decides about one system call; it always ends in a return."""
    block: list[bytes] = []
    for rule in alternatives:
        tail = [_instruction(_RETURN, _NOTIFY) if rule.notifies else _deny(rule.error)]
        for condition in reversed(rule.conditions):
            tail = [*_test(condition, len(tail)), *tail]
        block += tail
        if not rule.conditions:
            return block
    return [*block, _instruction(_RETURN, _ALLOW)]


def _test(condition: Condition, skip: int) -> list[bytes]:
    """Return a test that goes on if the condition holds, and skips `skip` instructions if not."""
    load = _instruction(_LOAD, _ARGUMENTS_OFFSET + 8 * condition.argument)
    match condition:
        case HasBits(mask=mask):
            return [load, _instruction(_JUMP_ANY_BIT, mask, 0, skip)]
        case Equals(value=value, mask=mask):
            masked = _instruction(_AND, mask)
            return [load, masked, _instruction(_JUMP_EQUAL, value, 0, skip)]
        case NotIn(values=values):
            count = len(values)
            return [
                load,
                *(
                    _instruction(_JUMP_EQUAL, value, count - 1 - index + skip, 0)
                    for index, value in enumerate(values)
                ),
            ]


def _by_number(rules: Iterable[Rule], machine: str) -> list[tuple[int, list[Rule]]]:
    numbered = [(getattr(rule, machine), rule) for rule in rules]
    known = sorted(
        ((number, rule) for number, rule in numbered if number is not None),
        key=lambda pair: pair[0],
    )
    return [(number, [rule for _, rule in each]) for number, each in groupby(known, lambda p: p[0])]


def _deny(error: int) -> bytes:
    return _instruction(_RETURN, _ERRNO | error)


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)
