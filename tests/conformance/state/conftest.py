import pytest

pytest.register_assert_rewrite("trainctl.testing.state_log")
