//! The device as a state machine, with recorded effects instead of workers and a window.

