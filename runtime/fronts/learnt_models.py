"""The processors of a front: built in the background while the models' requests are passed on."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from runtime.fronts.device_link import read_lesson
from runtime.tasks.processors import load_processor
from runtime.threads import in_thread

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from runtime.fronts.device_link import DeviceLink
    from runtime.tasks.task import Processor

logger = logging.getLogger(__name__)

MAX_MODELS: Final = 64
MAX_LESSONS: Final = 4
"""At once; clients can name any model."""
RETRY_S: Final = 1.0
"""Until a model that is not for fronts is asked for again: it may be on the device by then."""
FAILED_RETRY_S: Final = 60.0
"""The same after an error."""

_Name = tuple[str, str | None]
"""A model in a URL's path, and the generation that a request wants."""


@dataclass(frozen=True, slots=True)
class LearntModel:
    key: str
    processor: Processor


class LearntModels:
    def __init__(self, link: DeviceLink, threads: Executor, tasks: asyncio.TaskGroup) -> None:
        self._link = link
        self._threads = threads
        self._tasks = tasks
        self._learnt: OrderedDict[_Name, LearntModel] = OrderedDict()
        self._lessons: set[_Name] = set()
        self._again_s: OrderedDict[_Name, float] = OrderedDict()

    def get(self, model: str, generation: str | None) -> LearntModel | None:
        """The model, if the front has learnt it; else it begins to."""
        name = (model, generation)
        found = self._learnt.get(name)
        if found is not None:
            self._learnt.move_to_end(name)
        elif self._may_learn(name):
            self._lessons.add(name)
            self._tasks.create_task(self._learn(name))
        return found

    def forget(self, model: str, generation: str | None) -> None:
        self._learnt.pop((model, generation), None)

    def _may_learn(self, name: _Name) -> bool:
        if name in self._lessons or len(self._lessons) >= MAX_LESSONS:
            return False
        return asyncio.get_running_loop().time() >= self._again_s.get(name, 0.0)

    async def _learn(self, name: _Name) -> None:
        retry_s = RETRY_S
        try:
            learnt = await self._ask(*name)
        except Exception:  # of any library: the device process serves the model as it can
            logger.exception("the front cannot learn a model", extra={"model": name})
            learnt, retry_s = None, FAILED_RETRY_S
        finally:
            self._lessons.discard(name)
        self._again_s.pop(name, None)
        if learnt is None:
            self._again_s[name] = asyncio.get_running_loop().time() + retry_s
            while len(self._again_s) > MAX_MODELS:
                self._again_s.popitem(last=False)
            return
        self._learnt[name] = learnt
        while len(self._learnt) > MAX_MODELS:
            self._learnt.popitem(last=False)

    async def _ask(self, model: str, generation: str | None) -> LearntModel | None:
        with self._link.lesson(model, generation) as reply:
            lesson = read_lesson((await reply).fields)
            if lesson is None:
                return None
            same = (each for each in self._learnt.values() if each.key == lesson.key)
            if (known := next(same, None)) is not None:
                return known
            processor = await in_thread(self._threads, load_processor, lesson.folder, lesson.task)
            return LearntModel(lesson.key, processor)
