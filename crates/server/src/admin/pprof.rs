//! `/debug/pprof`: CPU, memory and lock profiles of this klad while it serves, under the paths that Go's tools know.
//!
//! ```text
//!   admin thread:     request ─▶ place ─▶ (window begins) ─▶ timer … ─▶ (window ends) ─▶ turn ─▶ (names, form) ─▶ answer
//!                                              │                              │                        │
//!   klad-profile:                      thread of its own              thread of its own    thread of its own, one at a time
//! ```
//!
//! The admin thread waits for timers alone: what begins and ends a profile may take a while, and loading the symbols reads
//! files. A window ends when its time is over, and not when its turn comes to be named. A client that goes away takes its
//! window with it. Called by `admin`.

use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{CONTENT_DISPOSITION, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Request, Response};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use self::form::Form;
use self::kind::{Kind, Window};
use self::parameters::Parameters;
use crate::admin::page::Page;
use crate::http::api_error::ApiError;
use klad_base::limits::{PROFILE_MAKING_TIMEOUT, PROFILES_OF_A_KIND_MAX};
use klad_base::sync;
use klad_profile::symbols::Symbols;
use klad_profile::{Name, Profile, heap, threads};

mod form;
mod kind;
mod parameters;

/// The paths that [`Profiler::answer`] is for.
pub(super) fn is_path(path: &str) -> bool {
    path == "/debug/pprof" || path.starts_with("/debug/pprof/")
}

/// Of those that begin, end and name profiles.
const THREAD: &str = "klad-profile";

/// Takes profiles, a few at a time.
#[derive(Debug)]
pub struct Profiler {
    /// Of each kind.
    places: [Arc<Semaphore>; Kind::ALL.len()],
    /// One at a time is named and written: that is what takes CPU time and memory.
    making: Arc<Semaphore>,
}

impl Default for Profiler {
    fn default() -> Profiler {
        let places = [(); Kind::ALL.len()].map(|()| Arc::new(Semaphore::new(PROFILES_OF_A_KIND_MAX)));
        Profiler { places, making: Arc::new(Semaphore::new(1)) }
    }
}

impl Profiler {
    /// Answers a GET, or a HEAD: nothing is taken for that. `extra` grows by what the connection is to live longer for it.
    pub(super) async fn answer(
        &self,
        request: &Request<Incoming>,
        extra: &Cell<Duration>,
    ) -> Result<Response<Page>, ApiError> {
        let is_head = request.method() == Method::HEAD;
        let query = request.uri().query().unwrap_or_default();
        let name = request.uri().path().trim_start_matches("/debug/pprof").trim_start_matches('/');
        match name {
            "" => Ok(of_type("text/html; charset=utf-8", index())),
            "cmdline" => Ok(of_type("text/plain; charset=utf-8", command_line())),
            // Names are in the profiles already.
            "symbol" => Ok(of_type("text/plain; charset=utf-8", "num_symbols: 0\n")),
            "threads" => {
                let parameters = Parameters::read(query, &["format", "debug"])?;
                if is_head {
                    return Ok(answer_of_threads(parameters.form_given.then_some(parameters.form), Bytes::new()));
                }
                let place = self.place(Kind::Threads)?;
                extra.set(extra.get() + PROFILE_MAKING_TIMEOUT);
                self.threads(&parameters, place).await
            }
            name => {
                let kind = Kind::named(name).ok_or(ApiError::UnknownPath)?;
                let parameters = Parameters::read(query, kind.parameters())?;
                if is_head {
                    return Ok(attachment(parameters.form, kind.name(), Bytes::new()));
                }
                let place = self.place(kind)?;
                extra.set(extra.get() + parameters.window(kind) + PROFILE_MAKING_TIMEOUT);
                self.profile(kind, &parameters, place).await
            }
        }
    }

    fn place(&self, kind: Kind) -> Result<Place, ApiError> {
        let place = self.places[kind as usize].clone().try_acquire_owned();
        place.map(Arc::new).map_err(|_| {
            ApiError::ProfileBusy(format!("{PROFILES_OF_A_KIND_MAX} profiles of this kind are being taken"))
        })
    }

    async fn profile(&self, kind: Kind, parameters: &Parameters, place: Place) -> Result<Response<Page>, ApiError> {
        let asked = parameters.clone();
        // Made there: if the request is given up meanwhile, it is not this thread that waits for the window's end.
        let its_place = place.clone();
        let window = on_thread(&place, move || Ok(Open::new(kind.start(&asked)?, &its_place))).await?;
        tokio::time::sleep(parameters.window(kind)).await;
        let seen = on_thread(&place, move || window.take().end()).await?;
        let iteration = self.making.clone().acquire_owned().await.expect("it is never closed");
        let (form, seconds) = (parameters.form, parameters.window(kind));
        let made = on_thread(&place, move || {
            let _iteration = iteration;
            Ok(form.write(&with_facts(seen.named(&Symbols::of_this_process()?), seconds)))
        });
        Ok(attachment(form, kind.name(), made.await?))
    }

    /// A list for people, unless another form is asked for.
    async fn threads(&self, parameters: &Parameters, place: Place) -> Result<Response<Page>, ApiError> {
        let iteration = self.making.clone().acquire_owned().await.expect("it is never closed");
        let form = parameters.form_given.then_some(parameters.form);
        let made = on_thread(&place, move || {
            let _iteration = iteration;
            let symbols = Symbols::of_this_process()?;
            let all = threads::capture()?;
            Ok(match form {
                Some(form) => form.write(&with_facts(kind::of_threads(&all, &symbols), Duration::ZERO)),
                None => kind::list_of_threads(&all, &symbols).into(),
            })
        });
        Ok(answer_of_threads(form, made.await?))
    }
}

/// Held by the request and by the threads that work for it, which go on when its client has gone away.
type Place = Arc<OwnedSemaphorePermit>;

/// A window whose time runs. Ending it waits for the profiler's thread, also when the client has gone away, so that a thread of
/// its own does.
struct Open {
    /// `None` once it was taken.
    window: Option<Window>,
    place: Place,
}

impl Open {
    fn new(window: Window, place: &Place) -> Open {
        Open { window: Some(window), place: place.clone() }
    }

    fn take(mut self) -> Window {
        self.window.take().expect("only this takes it, once")
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if let Some(window) = self.window.take() {
            let place = self.place.clone();
            // Where there is no thread to be had, it ends here.
            drop(sync::try_spawn_thread(THREAD, move || {
                heap::leave_this_thread_out();
                drop(window);
                drop(place);
            }));
        }
    }
}

/// Runs `make` on a thread of its own.
async fn on_thread<T: Send + 'static>(
    place: &Place,
    make: impl FnOnce() -> Result<T, klad_profile::Error> + Send + 'static,
) -> Result<T, ApiError> {
    on_spawned(|run| sync::try_spawn_thread(THREAD, run).map(drop), place, make).await
}

/// As [`on_thread`], on what `spawn` starts.
async fn on_spawned<T: Send + 'static>(
    spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> std::io::Result<()>,
    place: &Place,
    make: impl FnOnce() -> Result<T, klad_profile::Error> + Send + 'static,
) -> Result<T, ApiError> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let place = place.clone();
    // Not waited for: what nobody listens to any more is thrown away at its end.
    let started = spawn(Box::new(move || {
        heap::leave_this_thread_out();
        let _ = sender.send(make());
        drop(place);
    }));
    started.map_err(|error| ApiError::ProfileRefused(format!("klad cannot start a thread for it: {error}")))?;
    let made = receiver.await.map_err(|_| ApiError::ProfileRefused("it was given up".to_owned()))?;
    made.map_err(|error| match error {
        klad_profile::Error::Busy(_) => ApiError::ProfileBusy(error.to_string()),
        klad_profile::Error::Refused(_) | klad_profile::Error::Malformed(_) => {
            ApiError::ProfileRefused(error.to_string())
        }
    })
}

/// What stands in every form, of every kind.
fn with_facts(mut profile: Profile<Name>, window: Duration) -> Profile<Name> {
    let mut add = |name: &str, value: String| {
        if !profile.facts.iter().any(|(known, _)| known == name) {
            profile.facts.push((name.to_owned(), value));
        }
    };
    let taken = profile.duration;
    if !taken.is_zero() || !window.is_zero() {
        let taken = if taken.is_zero() { window } else { taken };
        add("duration", format!("{:.3} s", taken.as_secs_f64()));
    }
    add("version", format!("klad {}", env!("CARGO_PKG_VERSION")));
    profile
}

fn answer_of_threads(form: Option<Form>, made: Bytes) -> Response<Page> {
    match form {
        Some(form) => attachment(form, "threads", made),
        None => of_type("text/plain; charset=utf-8", made),
    }
}

fn attachment(form: Form, name: &str, body: Bytes) -> Response<Page> {
    let mut answer = of_type(form.content_type(), body);
    if form == Form::Pprof {
        let named = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")).expect("a word");
        answer.headers_mut().insert(CONTENT_DISPOSITION, named);
    }
    answer
}

fn of_type(content_type: &'static str, body: impl Into<Bytes>) -> Response<Page> {
    let mut answer = Response::new(Page::from(body.into()));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    answer
}

/// As Go has it: the words with a NUL between two.
fn command_line() -> Bytes {
    use std::os::unix::ffi::OsStringExt;
    let words: Vec<Vec<u8>> = std::env::args_os().map(OsStringExt::into_vec).collect();
    words.join(&0).into()
}

/// For people with a browser.
fn index() -> String {
    let mut page = String::from(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<meta name=\"viewport\" \
         content=\"width=device-width, initial-scale=1\">\n<meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>klad: profiles</title>\n<style>body { font: 15px/1.5 system-ui, sans-serif; margin: 1rem; \
         max-width: 60rem; } dt { margin-top: .75rem; font-weight: 600; } dd { margin-left: 1rem; }</style>\n\
         <h1>Profiles of this klad</h1>\n<dl>\n",
    );
    for kind in Kind::ALL {
        let (name, about, cost) = (kind.name(), kind.about(), kind.cost());
        let _ = writeln!(
            page,
            "<dt>{name}</dt><dd>{about} {cost}<br><a href=\"/debug/pprof/{name}?{short}format=flamegraph\">flame graph</a>, \
             <a href=\"/debug/pprof/{name}?{short}format=collapsed\">text</a>, \
             <a href=\"/debug/pprof/{name}\">pprof</a></dd>",
            short = if kind.has_default_window() { "seconds=5&amp;" } else { "" },
        );
    }
    page.push_str(
        "<dt><a href=\"/debug/pprof/cmdline\">cmdline</a></dt><dd>The command line, with a NUL between two words.</dd>\n\
         </dl>\n<p>Beside them: <a href=\"/debug/memory?format=text\">/debug/memory</a>, where the memory is, and \
         <a href=\"/debug/slow\">/debug/slow</a>, the requests that took longest. <code>go tool pprof http://HOST:PORT/debug/pprof/profile?seconds=30</code> reads all of them.</p>\n</html>\n",
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sampling rates are the process's: tests that start CPU profiles run one after the other.
    fn alone() -> sync::MutexGuard<'static, ()> {
        static ALONE: sync::Mutex<()> = sync::Mutex::new(());
        ALONE.lock()
    }

    fn wait<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(future)
    }

    #[test]
    fn without_a_thread_it_is_refused_and_the_place_is_free_again() {
        let places = Arc::new(Semaphore::new(1));
        let place = Arc::new(places.clone().try_acquire_owned().expect("there is one"));
        let none = |_: Box<dyn FnOnce() + Send>| Err(std::io::Error::from_raw_os_error(libc::EAGAIN));
        let refused = wait(on_spawned(none, &place, || Ok(()))).expect_err("there is no thread");
        assert_eq!((refused.status().as_u16(), refused.code()), (501, "profile-refused"));
        assert!(refused.to_string().contains("cannot start a thread"), "{refused}");
        drop(place);
        assert_eq!(places.available_permits(), 1);
    }

    #[test]
    fn a_window_ends_with_its_time_and_not_with_its_turn() {
        let _alone = alone();
        let profiler = Profiler::default();
        // Somebody else is being named, and takes long.
        let iteration = profiler.making.clone().try_acquire_owned().expect("nobody has it");
        let answer = wait(async {
            let parameters = Parameters::read("seconds=0.05&format=collapsed", Kind::Cpu.parameters());
            let parameters = parameters.expect("they are good");
            let place = profiler.place(Kind::Cpu).expect("there is one");
            let naming = async {
                tokio::time::sleep(Duration::from_secs(3)).await;
                drop(iteration);
            };
            let (taken, ()) = tokio::join!(profiler.profile(Kind::Cpu, &parameters, place), naming);
            taken.expect("it is taken")
        });
        let text = format!("{:?}", answer.into_body());
        let seconds = text.split("# duration: ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        let seconds: f64 = seconds.expect("a profile says how long it took");
        assert!((0.05..3.0).contains(&seconds), "its turn came after 3 s: {text}");
    }

    #[test]
    fn a_window_that_nobody_waits_for_ends_and_makes_room() {
        let _alone = alone();
        let places = Arc::new(Semaphore::new(1));
        let place = Arc::new(places.clone().try_acquire_owned().expect("there is one"));
        let parameters = Parameters::read("hz=7", Kind::Cpu.parameters()).expect("they are good");
        drop(Open::new(Kind::Cpu.start(&parameters).expect("nobody else takes one"), &place));
        drop(place);
        let deadline = klad_base::clock::now() + Duration::from_secs(30);
        while places.available_permits() == 0 {
            assert!(klad_base::clock::now() < deadline, "its place is not free again");
            std::thread::yield_now();
        }
        // Of another rate: the one before has ended.
        let parameters = Parameters::read("hz=8", Kind::Cpu.parameters()).expect("they are good");
        drop(Kind::Cpu.start(&parameters).expect("nobody takes one any more"));
    }
}
