"""The tests. What imports them collects garbage rarely: torch and syntax trees are millions of objects."""

import gc


gc.set_threshold(100_000, 50, 100)
