"""S3 keys of a role that a tenant's service account may assume, as IRSA has it; kept in memory."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from runtime.errors import StorageFailed

ROLE: Final = "eks.amazonaws.com/role-arn"
"""Annotation of a service account, as on EKS."""
KEYS_TTL_S: Final = 3600
RENEW_BEFORE_S: Final = 900.0
"""Keys with less time left are not used for another download: it may take so long."""


class RoleKeys:
    """Exchanges tokens of service accounts for keys of their roles, at STS. Blocks.

    Threads share it without a lock: two loads of an account may both ask STS.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """`environment`: the pod's, with region and endpoint; its keys are not used."""
        get = environment.get
        self._endpoint = get("AWS_ENDPOINT_URL_STS")
        self._region = get("AWS_REGION") or get("AWS_DEFAULT_REGION") or "us-east-1"
        self._known: dict[tuple[str, str, str], tuple[float, dict[str, str]]] = {}
        """By account, role and audience: when they end, and the keys."""

    def of(
        self, account: str, annotations: Mapping[str, str], make_token: Callable[[str], str]
    ) -> dict[str, str]:
        """The keys as variables; raises StorageFailed. `make_token`: for an audience."""
        audience = annotations.get("eks.amazonaws.com/audience", "sts.amazonaws.com")
        asked = (account, annotations[ROLE], audience)
        ends_s, keys = self._known.get(asked, (0.0, {}))
        if time.time() >= ends_s - RENEW_BEFORE_S:
            found = self._assume(*asked, make_token(audience))
            keys = {
                "AWS_ACCESS_KEY_ID": found["AccessKeyId"],
                "AWS_SECRET_ACCESS_KEY": found["SecretAccessKey"],
                "AWS_SESSION_TOKEN": found["SessionToken"],
            }
            self._known[asked] = found["Expiration"].timestamp(), keys
        return keys

    def _assume(self, account: str, role: str, audience: str, token: str) -> Any:
        config = Config(signature_version=UNSIGNED, connect_timeout=10, read_timeout=10)
        try:
            client: Any = boto3.session.Session().client(
                "sts", endpoint_url=self._endpoint, region_name=self._region, config=config
            )
            return client.assume_role_with_web_identity(
                RoleArn=role,
                RoleSessionName=re.sub(r"[^\w+=,.@-]", ".", f"pilotlight.{account}")[:64],
                WebIdentityToken=token,
                DurationSeconds=KEYS_TTL_S,
            )["Credentials"]
        except (BotoCoreError, ClientError, ValueError) as error:  # ValueError: of a URL
            raise StorageFailed(
                f"service account {account} could not assume {role!r} ({ROLE}): {error}; the role's"
                " trust policy must allow sts:AssumeRoleWithWebIdentity to"
                f" system:serviceaccount:{account.replace('/', ':')} with audience {audience}"
            ) from error
