"""Messages that name options: as Python keywords, as flags, and at the caller's line."""

import warnings

import pytest

from tuplet.errors import OptionError, OptionTypeError, OptionWarning, opt, warn


def flag(name, value=None):
    return f"--{name.replace('_', '-')}" + ("" if value is None else f" {value}")


def test_only_marked_names_are_spelled_as_flags():
    error = OptionError(f"the class 'batch_size' needs {opt('batch_size')} above 2", f"give {opt('batch_size', 4)}")
    assert str(error) == "the class 'batch_size' needs batch_size above 2; give batch_size=4"
    assert error.spelled(flag) == "the class 'batch_size' needs --batch-size above 2; give --batch-size 4"
    assert (error.option, error.remedy) == ("batch_size", "give batch_size=4")


def test_an_error_may_name_no_option():
    error = OptionError("the data are empty")
    assert (error.option, error.remedy, error.spelled(flag)) == (None, None, "the data are empty")


def test_a_type_error_is_both():
    assert issubclass(OptionTypeError, TypeError)
    assert issubclass(OptionTypeError, ValueError)


def test_a_warning_points_at_the_caller():
    with pytest.warns(OptionWarning, match="^lr is high$") as caught:
        warn(f"{opt('lr')} is high")
    assert caught[0].filename == __file__
    assert caught[0].message.spelled(flag) == "--lr is high"


def test_warnings_can_be_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(OptionWarning, match="lr is high"):
            warn(f"{opt('lr')} is high")
