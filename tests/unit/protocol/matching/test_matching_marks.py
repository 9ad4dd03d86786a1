"""What relates two members: a prefix of their addresses, or the branch that vouched for them."""

from protocol.matching.relatives import mark_of_host, mark_of_path
from tests.support.matching_examples import peer


def test_a_prefix_and_a_branch_relate_and_private_addresses_do_not() -> None:
    assert mark_of_host("203.0.112.7") == mark_of_host("203.0.112.200") is not None
    assert mark_of_host("203.0.112.7") != mark_of_host("203.0.111.7")
    assert mark_of_host("2a11:0:1::7") == mark_of_host("2a11:0:1:ffff::9") is not None
    assert mark_of_host("2a11:0:1::7") != mark_of_host("2a11:0:2::7")
    assert mark_of_host("fd00::1") is mark_of_host("::1") is mark_of_host("fe80::1") is None
    assert mark_of_host("127.0.0.1") is mark_of_host("192.168.0.2") is mark_of_host("a.b") is None
    inviter, one, two = (peer(n) for n in range(3))
    assert mark_of_path([]) is None
    assert mark_of_path([inviter]) == mark_of_path([inviter, one]) is not None
    assert mark_of_path([two]) != mark_of_path([inviter])
