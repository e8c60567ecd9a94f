//! What a stack begins with: the function that the thread has called, not how klad's own go about it.
//!
//! POSIX's have their own names, because `sampling::pthread` defines them. Those of `sync` are inlined where the lock is free;
//! where it is taken, the wait is another function, and has the name of that one here.
//!
//! Called by `locks`.

use crate::{Name, Profile};

/// A type and a method of `sync`, and what people know the method as.
const KNOWN_AS: [(&str, &str, &str); 5] = [
    ("klad_base::sync::Mutex", "lock_contended", "klad_base::sync::Mutex::lock"),
    ("klad_base::sync::RwLock", "read_contended", "klad_base::sync::RwLock::read"),
    ("klad_base::sync::RwLock", "write_contended", "klad_base::sync::RwLock::write"),
    ("klad_base::sync::Condvar", "wait", "klad_base::sync::Condvar::wait"),
    ("klad_base::sync::Condvar", "wait_timeout", "klad_base::sync::Condvar::wait_timeout"),
];

/// The same profile with the first frame of each stack as it was called.
pub(super) fn as_called(mut profile: Profile<Name>) -> Profile<Name> {
    for sample in &mut profile.samples {
        if let Some(first) = sample.frames.first_mut()
            && let Some(known) = known_as(first)
        {
            *first = known.into();
        }
    }
    profile
}

fn known_as(name: &str) -> Option<&'static str> {
    KNOWN_AS.iter().find(|(owner, method, _)| is_of(name, owner, method)).map(|(_, _, known)| *known)
}

/// Types that are parameters do not matter: `klad_base::sync::Mutex<T>::lock` and `<klad_base::sync::Mutex<u8>>::lock::<u8>` are the two
/// ways in which compilers write them.
fn is_of(name: &str, owner: &str, method: &str) -> bool {
    let rest = name.strip_prefix('<').unwrap_or(name).strip_prefix(owner);
    rest.is_some_and(|rest| rest.starts_with(['<', '>', ':']) && rest.split("::").any(|part| part == method))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_functions_have_the_names_that_people_know() {
        let known = |name| known_as(name).unwrap_or("none");
        assert_eq!(known("klad_base::sync::Mutex<T>::lock_contended"), "klad_base::sync::Mutex::lock");
        assert_eq!(known("<klad_base::sync::Mutex<u8>>::lock_contended"), "klad_base::sync::Mutex::lock");
        assert_eq!(known("klad_base::sync::RwLock<T>::read_contended"), "klad_base::sync::RwLock::read");
        assert_eq!(known("klad_base::sync::RwLock<T>::write_contended"), "klad_base::sync::RwLock::write");
        assert_eq!(known("klad_base::sync::Condvar::wait"), "klad_base::sync::Condvar::wait");
        assert_eq!(known("<klad_base::sync::Condvar>::wait_timeout::<u8>"), "klad_base::sync::Condvar::wait_timeout");
    }

    #[test]
    fn twin_names_that_only_look_so_stay() {
        for name in
            ["pthread_mutex_lock", "klad_base::sync::Mutexes::lock_contended", "a::Mutex<T>::lock_contended", "wait"]
        {
            assert_eq!(known_as(name), None, "{name}");
        }
        assert_eq!(known_as("klad_base::sync::Mutex<T>::try_lock"), None);
    }
}
