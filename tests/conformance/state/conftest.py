import pytest

pytest.register_assert_rewrite("trainctl.testing.object_store", "trainctl.testing.state_log")
