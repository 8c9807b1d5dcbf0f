"""A request to an application: its data is looked at, a plan chooses variant and pod.

Where the pod has no slot left or did not execute the request, it joins the next window. Where the
plan says that the look answers, no pod is called.
"""

from typing import Final

import orjson

from common.inference_protocol.bodies import LENGTH_HEADER, V2Request, encode_response
from common.inference_protocol.tensors import numeric_tensor
from gateway.dispatch.placer import PlanRefused
from gateway.dispatch.pod_request import RequestContext
from gateway.dispatch.request import Request
from gateway.dispatch.reservations import Placement
from gateway.errors import BadRequest, NotReady
from gateway.http.body import BUFFER_BYTES, IncomingBody
from gateway.http.error_responses import InferenceClient
from gateway.http.headers import RequestHeaders
from gateway.http.targets import target_of_variant
from gateway.routing.route_request import IncomingRequest
from registry.domain.application import ApplicationSpec
from variants.live import LiveApplications
from variants.live_window import NoUsableVariant
from variants.look_client import Look
from variants.open_windows import ApplicationRequest as AskedApplication
from variants.open_windows import Selection
from variants.planning.window import class_probabilities

PROBABILITIES: Final = "probabilities"
"""Name of the second output."""
_LENGTH: Final = LENGTH_HEADER.encode()


class ShortCircuit(Exception):
    """The plan says that the look answers the request."""

    def __init__(self, selection: Selection) -> None:
        super().__init__()
        self.selection = selection


class ApplicationRequest(Request):
    """A request whose variant and pod a plan chooses, again for each attempt."""

    def __init__(
        self,
        context: RequestContext,
        client: InferenceClient,
        headers: RequestHeaders,
        arrival: IncomingRequest,
        body: IncomingBody,
        application: ApplicationSpec,
        policy: str,
        *,
        live: LiveApplications,
        deadline_s: float,
    ) -> None:
        super().__init__(context, client, headers, arrival, body)
        self._application_target = client.target
        self._windows = live.windows
        self._looks = live.looks
        self._asked = AskedApplication(
            arrival.id, application, arrival.arrival_s, deadline_s, policy
        )

    async def run(self, until_s: float) -> None:
        """As `Request.run`. Raises BadRequest for data that no variant can answer."""
        await self._receive()
        self._asked.look = await self._look()
        try:
            await super().run(until_s)
        except ShortCircuit as found:
            self._answer(found.selection)

    def _count_arrival(self) -> None:
        """Counted for the variant, once it is chosen."""

    async def _place(self) -> Placement:
        """Raises ShortCircuit, GatewayError."""
        placer = self._context.placer
        while True:
            try:
                selection = await self._windows.select(self._asked)
            except NoUsableVariant as error:
                raise NotReady(str(error), retry_after_s=1.0) from error
            self._take_variant(selection)
            placement = Placement(self.arrival)
            pod = selection.assignment.worker
            if not pod:
                return await placement.place(placer)
            placement.policy = self._asked.policy
            if placer.place_planned(placement, pod) is False:
                continue
            try:
                return await placement.placed(placer)
            except PlanRefused:
                continue

    def _take_variant(self, selection: Selection) -> None:
        if selection.variant is None:
            raise ShortCircuit(selection)
        self._client.target = self._target = target_of_variant(
            self._application_target,
            selection.variant,
            accuracy=selection.assignment.accuracy,
            utility=selection.assignment.utility,
        )
        self.arrival.model = selection.variant
        if self._asked.plans == 1:
            self._context.arrival_counter.count(selection.variant)

    def _release(self, placement: Placement, *, is_cancelled: bool = False) -> None:
        super()._release(placement, is_cancelled=is_cancelled)
        self._windows.notify_change()

    async def _look(self) -> Look:
        body, asked = self._body, self._asked
        length = next((value for name, value in self._client.headers if name == _LENGTH), None)
        found = await self._looks.look(
            asked.application,
            body.buffered if body.received_bytes <= BUFFER_BYTES else None,
            json_length=None if length is None else length.decode("latin-1"),
            deadline_s=asked.deadline_s,
        )
        if found.problem:
            raise BadRequest(f"application {asked.application.name}: {found.problem}")
        return found

    def _answer(self, selection: Selection) -> None:
        application = self._asked.application
        body = answer(application, self._asked.look)
        lines = self._context.telemetry.answered_by_look(
            self.arrival.id,
            str(application.name),
            str(self._asked.policy),
            accuracy=selection.assignment.accuracy,
            utility=selection.assignment.utility,
        )
        self._client.start_response(200, lines, b"%d" % len(body))
        self._client.write_body(body, is_last=True)


def answer(application: ApplicationSpec, look: Look) -> bytes:
    """The response to a request that the look answers: the likeliest class of each row.

    In V1 or V2 JSON, with the probabilities of the classes; it bears the application's name.
    """
    theta = class_probabilities(look.rows)
    labels = theta.argmax(axis=1)
    if look.is_v2:
        tensors = (numeric_tensor(application.output, labels), numeric_tensor(PROBABILITIES, theta))
        request = V2Request((), look.request_id)
        return encode_response(tensors, model_name=application.name.name, request=request).content
    rows = [
        {application.output: label, PROBABILITIES: shares}
        for label, shares in zip(labels.tolist(), theta.tolist(), strict=True)
    ]
    return orjson.dumps({"predictions": rows})
