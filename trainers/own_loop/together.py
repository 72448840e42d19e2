"""Several optimizers of one model as one, for what counts their steps and reads their state."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, cast

import torch
from torch.nn import Parameter
from torch.utils.hooks import RemovableHandle

#: The optimizer of a loop, or all that it steps.
Optimizers = torch.optim.Optimizer | Sequence[torch.optim.Optimizer]
#: Gets the optimizer, and the positional and the named arguments of its `step`.
StepHook = Callable[[torch.optim.Optimizer, Sequence[Any], Mapping[str, Any]], Any]


class JointState(MutableMapping[Parameter, Any]):
    """The state of several optimizers: each parameter's is its owner's."""

    def __init__(self, owners: Mapping[Parameter, torch.optim.Optimizer]) -> None:
        self._owners = owners
        self._optimizers = [*dict.fromkeys(owners.values())]

    def __getitem__(self, parameter: Parameter) -> Any:
        return self._owners[parameter].state[parameter]  # made if it is missing, as torch does

    def __setitem__(self, parameter: Parameter, state: Any) -> None:
        self._owners[parameter].state[parameter] = state

    def __delitem__(self, parameter: Parameter) -> None:
        del self._owners[parameter].state[parameter]

    def __contains__(self, parameter: object) -> bool:
        return any(parameter in each.state for each in self._optimizers)

    def get(self, parameter: Parameter, default: Any = None) -> Any:
        owner = self._owners.get(parameter)
        return default if owner is None else owner.state.get(parameter, default)

    def __iter__(self) -> Iterator[Any]:
        return (key for each in self._optimizers for key in each.state)

    def __len__(self) -> int:
        return sum(len(each.state) for each in self._optimizers)


class Together:
    """Several optimizers, each with parameters of its own; a round is one step of each.

    Hooks are called once a round: before the first step of it, and after the last. Raises ValueError for a parameter
    that is in two of them.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self.optimizers = [*optimizers]
        numbers: dict[Parameter, int] = {}
        for number, optimizer in enumerate(optimizers):
            for parameter in (each for group in optimizer.param_groups for each in group["params"]):
                if numbers.setdefault(parameter, number) != number:
                    raise ValueError(
                        f"`optimizer`: number {number} ({type(optimizer).__name__}) must have parameters of its own, "
                        f"and number {numbers[parameter]} steps one of shape {tuple(parameter.shape)}, too"
                    )
        self.state = JointState({parameter: optimizers[number] for parameter, number in numbers.items()})
        self._stepped: list[torch.optim.Optimizer] = []  # in this round
        self._before = OrderedDict[int, StepHook]()
        self._after = OrderedDict[int, StepHook]()

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return [group for each in self.optimizers for group in each.param_groups]

    def register_step_pre_hook(self, hook: StepHook) -> RemovableHandle:
        return _registered(self._before, hook)

    def register_step_post_hook(self, hook: StepHook) -> RemovableHandle:
        return _registered(self._after, hook)

    def follow(self, *, is_strict: bool) -> Callable[[], None]:
        """Call the hooks as the optimizers step from now on; returns what ends that.

        An optimizer that steps again before the others have ends the round, or, if that `is_strict`, raises
        RuntimeError.
        """

        def before(optimizer: torch.optim.Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            if optimizer in self._stepped:
                if is_strict:
                    raise RuntimeError(self._second_step_of(optimizer))
                self._end(optimizer, args, kwargs)
            if not self._stepped:
                self._call(self._before, optimizer, args, kwargs)

        def after(optimizer: torch.optim.Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
            self._stepped.append(optimizer)
            if len(self._stepped) == len(self.optimizers):
                self._end(optimizer, args, kwargs)

        handles = [each.register_step_pre_hook(before) for each in self.optimizers]
        handles += [each.register_step_post_hook(after) for each in self.optimizers]

        def end() -> None:
            self._stepped = []
            for handle in handles:
                handle.remove()

        return end

    def _end(self, *step: Any) -> None:
        self._stepped = []
        self._call(self._after, *step)

    def _call(self, hooks: Mapping[int, StepHook], *step: Any) -> None:
        for hook in [*hooks.values()]:
            hook(*step)

    def _second_step_of(self, optimizer: torch.optim.Optimizer) -> str:
        number = self.optimizers.index(optimizer)
        others = [each for each in self.optimizers if each not in self._stepped]
        return (
            f"optimizer number {number} ({type(optimizer).__name__}) has stepped twice before "
            f"{', '.join(type(each).__name__ for each in others)}: a step of the ranks is one of each optimizer, so "
            "step all of them once in each step of the loop"
        )


def _registered(hooks: "OrderedDict[int, StepHook]", hook: StepHook) -> RemovableHandle:
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle


def listed(optimizer: Optimizers) -> Sequence[torch.optim.Optimizer]:
    """Return the optimizers as they were given."""
    return optimizer if isinstance(optimizer, Sequence) else [optimizer]


def joined(optimizer: Optimizers) -> torch.optim.Optimizer:
    """Return the optimizer that is wrapped in `optimizer`, or all of several together.

    Raises ValueError for what is none, and for a parameter that is in two.
    """
    bare: list[torch.optim.Optimizer] = []
    for each in listed(optimizer):
        while isinstance(inner := getattr(each, "optimizer", None), torch.optim.Optimizer):
            each = inner  # Accelerate, Lightning and Fabric wrap it
        if not isinstance(each, torch.optim.Optimizer):
            raise ValueError(f"`optimizer` must be of torch.optim.Optimizer, got {type(each).__name__}")
        bare.append(each)
    if not bare:
        raise ValueError("`optimizer` must be one or several, got an empty list")
    # It has all that is used of one here.
    return bare[0] if len(bare) == 1 else cast(torch.optim.Optimizer, Together(bare))


def each_of(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Return the optimizers that `optimizer` stands for, in their order."""
    return optimizer.optimizers if isinstance(optimizer, Together) else [optimizer]
