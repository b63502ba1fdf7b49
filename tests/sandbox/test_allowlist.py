"""The allow-list: which hosts, ports and addresses it lets through."""

from ipaddress import ip_address

import pytest

from weakincentives.sandbox.allowlist import AllowList, is_public, normalize_host, parse_rule


@pytest.mark.parametrize(
    ("rule", "host", "port", "allowed"),
    [
        ("example.com", "example.com", 443, True),
        ("example.com", "example.com", 80, True),
        ("example.com", "example.com", 22, False),
        ("example.com", "www.example.com", 443, False),
        ("example.com", "notexample.com", 443, False),
        ("example.com", "example.com.evil.org", 443, False),
        ("*.example.com", "www.example.com", 443, True),
        ("*.example.com", "a.b.example.com", 443, True),
        ("*.example.com", "example.com", 443, False),
        ("*.example.com", "evilexample.com", 443, False),
        ("example.com:8443", "example.com", 8443, True),
        ("example.com:8443", "example.com", 443, False),
        ("EXAMPLE.com.", "example.com", 443, True),
        ("bücher.example", "xn--bcher-kva.example", 443, True),
        ("192.0.2.7:8080", "192.0.2.7", 8080, True),
        ("[::1]:8080", "::1", 8080, True),
        ("::1", "::1", 80, True),
        ("0:0:0::1", "::1", 80, True),
    ],
)
def test_a_rule_allows_what_it_names(rule: str, host: str, port: int, allowed: bool) -> None:
    assert AllowList([rule]).allows(host, port) is allowed


@pytest.mark.parametrize(
    "rule",
    [
        *("", "*", "*.", "*.*.com", "a.*.com", "a b.com", "-a.com", "a..com", "example.com:"),
        *("example.com:0", "example.com:65536", "example.com:http", "user@example.com"),
        *("https://example.com", "example.com/path", "127.1", "0x7f000001", "2130706433"),
        *("*.127.0.0.1", "[127.0.0.1]:80", "[::1", "fe80::1%eth0", "x" * 64 + ".com"),
        *(".".join(["abc"] * 64), "straße.example", "exam\nple.com"),
    ],
)
def test_a_rule_that_is_not_a_host_is_rejected(rule: str) -> None:
    with pytest.raises(ValueError, match=r"(?i)host|port|address"):
        parse_rule(rule)


def test_one_string_is_not_a_list_of_hosts() -> None:
    with pytest.raises(TypeError, match=r"not a single string: 'example\.com'"):
        AllowList("example.com")


@pytest.mark.parametrize(
    "rule", ["example.com", "*.example.com", "example.com:8443", "[::1]:80", "10.0.0.1"]
)
def test_a_rule_is_shown_as_it_is_written(rule: str) -> None:
    assert str(parse_rule(rule)) == rule


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.255.0.9", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254"),
        *("0.0.0.0", "100.64.0.1", "192.0.0.1", "198.18.0.1", "224.0.0.1", "240.0.0.1"),
        *("255.255.255.255", "192.0.2.1", "::", "::1", "fe80::1", "fc00::1", "fd12::1", "fec0::1"),
        *("ff02::1", "2001:db8::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1"),
        *("::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::a00:1"),
        *("2002:7f00:1::", "2002:a00:1::", "2001:0:4136:e378:8000:63bf:3fff:fdd2"),
        # metadata services
        *("192.0.0.192", "168.63.129.16", "100.100.100.200", "fd00:ec2::254", "fd20:ce::254"),
        *("::ffff:192.0.0.192", "::ffff:168.63.129.16", "::168.63.129.16", "64:ff9b::a83f:8110"),
        *("64:ff9b::c000:c0", "2002:a83f:8110::", "2002:c000:c0::1", "64:ff9b:1::a00:1"),
    ],
)
def test_local_private_and_reserved_addresses_are_not_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize(
    "address",
    ["93.184.216.34", "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"],
)
def test_addresses_of_the_internet_are_public(address: str) -> None:
    assert is_public(ip_address(address))


def test_a_name_does_not_open_a_private_address_unless_that_is_listed_too() -> None:
    allowed = AllowList(["internal.example", "10.0.0.5"])
    assert allowed.allows_address("internal.example", "93.184.216.34", 443)
    assert allowed.allows_address("internal.example", "10.0.0.5", 443)
    assert allowed.allows_address("internal.example", "::ffff:10.0.0.5", 443)
    assert not allowed.allows_address("internal.example", "10.0.0.6", 443)
    assert not allowed.allows_address("internal.example", "10.0.0.5", 8080)
    assert not allowed.allows_address("internal.example", "fe80::1%2", 443)


def test_localhost_opens_loopback_addresses_and_no_others() -> None:
    allowed = AllowList(["localhost:8080"])
    assert allowed.allows_address("localhost", "127.0.0.1", 8080)
    assert allowed.allows_address("localhost", "::1", 8080)
    assert not allowed.allows_address("localhost", "10.0.0.1", 8080)
    assert not AllowList(["evil.example"]).allows_address("evil.example", "127.0.0.1", 80)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("WWW.Example.Com.", "www.example.com"),
        ("::FFFF:127.0.0.1", "127.0.0.1"),
        ("2001:DB8:0::1", "2001:db8::1"),
        ("_dmarc.example.com", "_dmarc.example.com"),
    ],
)
def test_hosts_have_one_form(text: str, normal: str) -> None:
    assert normalize_host(text) == normal
