"""The state of slots: whatever happens in whatever order, batches come out in order, whole, each once."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from smallfiles.ring.state import END, Position, RingState

LENGTHS = (3, 1, 4)
GARBAGE = "garbage"


def after(position):
    epoch, batch = position
    if batch + 1 < LENGTHS[epoch]:
        return Position(epoch, batch + 1)
    return Position(epoch + 1, 0) if epoch + 1 < len(LENGTHS) else END


ALL = [Position(epoch, batch) for epoch, length in enumerate(LENGTHS) for batch in range(length)]


class Ring(RuleBasedStateMachine):
    """Producers that die, a trainer that dies or jumps; slots hold what was made."""

    @initialize(slots=st.integers(2, 6), start=st.sampled_from(ALL))
    def begin(self, slots, start):
        self.state = RingState(slots, start, after)
        self.held = {}  # slot -> content
        self.work = {}  # slot -> (producer, position)
        self.wanted = start  # what the trainer must get next
        self.passed = []  # delivered and not done with

    @rule(producer=st.integers(0, 3))
    def claim(self, producer):
        claim = self.state.claim(producer)
        if claim is not None:
            position, slot = claim
            assert slot not in self.work
            self.work[slot] = producer, position
            self.held[slot] = GARBAGE

    @precondition(lambda self: self.work)
    @rule(data=st.data())
    def make(self, data):
        slot = data.draw(st.sampled_from(sorted(self.work)))
        producer, position = self.work.pop(slot)
        self.held[slot] = position
        assert self.state.made(producer, slot, position) in (position, None)

    @rule(producer=st.integers(0, 3))
    def kill_producer(self, producer):
        lost = self.state.lost(producer)
        mine = {slot: position for slot, (owner, position) in self.work.items() if owner == producer}
        assert set(lost) <= set(mine.values())
        for slot in mine:
            del self.work[slot]

    @rule(ahead=st.integers(1, 4))
    def deliver(self, ahead):
        most = max(ahead, len(self.passed))
        for ready in self.state.deliver(ahead):
            expected = after(self.passed[-1].position) if self.passed else self.wanted
            assert ready.position == expected
            assert ready.payload == self.held[ready.slot] == ready.position
            self.passed.append(ready)
        assert len(self.passed) <= most

    @precondition(lambda self: self.passed)
    @rule(spoil=st.booleans())
    def train(self, spoil):
        taken = self.passed.pop(0)
        assert self.held[taken.slot] == taken.position
        if spoil:
            self.held[taken.slot] = GARBAGE  # changed in place
        assert not any(self.state.done(other) for other in ALL if other != taken.position)
        assert self.state.done(taken.position)
        self.wanted = after(taken.position)

    @rule()
    def kill_trainer(self):
        if self.passed:
            self.held[self.passed[0].slot] = GARBAGE
        self.passed = []
        self.state.withdraw()

    @rule(where=st.sampled_from(ALL))
    def jump(self, where):
        if self.passed:
            self.held[self.passed[0].slot] = GARBAGE
        self.passed = []
        self.state.seek(where)
        self.wanted = where

    @invariant()
    def counts_add_up(self):
        if hasattr(self, "state"):
            assert self.state.position == self.wanted
            assert self.state.making == len(self.work)
            assert self.state.making + self.state.ready <= self.state.slots
            assert self.state.finished == (self.wanted == END)

    def teardown(self):
        """From any state, a producer and a trainer that work get everything to the end."""
        if not hasattr(self, "state"):
            return
        for producer in range(4):
            self.kill_producer(producer)
        for _ in range(1000):
            if self.state.finished:
                return
            claim = self.state.claim(9)
            if claim is not None:
                self.held[claim[1]] = claim[0]
                self.state.made(9, claim[1], claim[0])
            self.deliver(4)
            if self.passed:
                self.train(True)
        raise AssertionError("the ring is stuck")


Ring.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestBatchesComeInOrderWholeAndOnce = Ring.TestCase
