//! What runs inside other threads while a profile is taken: in a signal handler, in a lock that waits. It never allocates, takes
//! no lock and makes no call that could.
//!
//! Called by `sync` and `profile`.
