"""Private facts that a report to strangers must not contain."""

from client.redaction import Redactor

SECRETS = """
join volunteer:ababababababab?peer=/ip4/203.0.113.7/tcp/4001/p2p/x&secret=c2VjcmV0 now
"secret": "c2VjcmV0", token=c2VjcmV0 api_password = c2VjcmV0
dialled /ip4/203.0.113.7/tcp/4001 and /dns4/home.example.org/tcp/1, 198.51.100.2:80, 2001:db8::7
from 12D3KooWJY89KzDm4BAZiWy934SeAUtv6iyLtHBgXgMdBADcfCUg, /dnsaddr/example.com, key: c2VjcmV0
cannot write /home/berta/diary/runs/a.swarm, ~/diary/b.swarm: no space; see /etc/volunteer/c.toml
at 12:34:56 on 127.0.0.1 with version 1.2.3
"""


def test_a_bundle_has_no_secrets_and_no_addresses() -> None:
    text = Redactor().clean(SECRETS)
    for secret in ("c2VjcmV0", "203.0.113.7", "198.51.100.2", "home.example.org", "2001:db8",
                   "12D3KooW", "example.com", "berta", "diary"):  # fmt: skip
        assert secret not in text
    assert "12:34:56 on 127.0.0.1 with version 1.2.3" in text
    assert text.count("[address-") == 5
    assert "…DcfCUg" in text
    assert "cannot write ~/…/a.swarm, ~/…/b.swarm: no space; see /etc/volunteer/c.toml" in text
