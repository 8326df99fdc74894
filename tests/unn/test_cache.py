"""A bounded cache against a list of all that was ever asked for."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unn.cache import BoundedCache


@given(capacity=st.integers(1, 5), keys=st.lists(st.integers(0, 8), max_size=40))
def test_a_cache_makes_what_is_not_among_the_entries_used_last(capacity, keys):
    cache, made = BoundedCache(capacity), []
    for number, key in enumerate(keys):
        last = list(dict.fromkeys(reversed(keys[:number])))[:capacity]
        before = len(made)
        assert cache.get_or_make(key, lambda key=key: made.append(key) or -key) == -key
        assert (len(made) == before) == (key in last)
        assert len(cache) <= capacity and key in cache


def test_none_is_an_entry_like_any_other():
    cache, made = BoundedCache(2), []
    for _ in range(2):
        assert cache.get_or_make("key", lambda: made.append(1)) is None
    assert made == [1]


def test_a_failure_leaves_no_entry():
    cache = BoundedCache(2)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            cache.get_or_make("key", lambda: 1 / 0)
    assert len(cache) == 0 and cache.get_or_make("key", lambda: 5) == 5


def test_a_cache_can_be_copied_and_pickled():
    cache = BoundedCache(2)
    cache.get_or_make("key", lambda: 5)
    for other in (copy.deepcopy(cache), pickle.loads(pickle.dumps(cache))):
        assert other.get_or_make("key", lambda: 6) == 5 and other.capacity == 2
