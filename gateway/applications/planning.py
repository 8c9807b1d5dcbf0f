"""The planning process: `python -m gateway.applications.planning DESCRIPTOR`, a gateway's socket.

It plans one window after another and ends when the gateway closes the socket. Messages are pickled:
both ends are the same program, and nobody else has the socket.
"""

from __future__ import annotations

import logging
import pickle
from typing import TYPE_CHECKING

from gateway.selection.selection_policies import plan_window
from gateway.sneakpeek.frames import Kind, frame
from gateway.sneakpeek.gateway_socket import gateway_socket, received

if TYPE_CHECKING:
    from gateway.selection.window import SelectionPlan, Window
    from registry.domain.application import SelectionPolicy

logger = logging.getLogger(__name__)


def encode_window(number: int, policy: SelectionPolicy, window: Window) -> bytes:
    return frame(Kind.PLAN, pickle.dumps((number, policy, window)))


def decode_plan(content: bytes) -> tuple[int, SelectionPlan | None]:
    """The number of the window, and its plan."""
    found: tuple[int, SelectionPlan | None] = pickle.loads(content)
    return found


def plan_or_none(policy: SelectionPolicy, window: Window) -> SelectionPlan | None:
    """None: no worker can run a variant of some application, or a policy failed.

    Requests are then routed without a plan: a mistake of ours must not hold up later windows.
    """
    try:
        return plan_window(policy, window)
    except ValueError:
        return None
    except Exception:
        logger.exception("a window cannot be planned", extra={"policy": str(policy)})
        return None


def main() -> None:
    with gateway_socket() as connection:
        for _, content in received(connection):
            number, policy, window = pickle.loads(content)
            plan = plan_or_none(policy, window)
            connection.sendall(frame(Kind.PLANNED, pickle.dumps((number, plan))))


if __name__ == "__main__":
    main()
