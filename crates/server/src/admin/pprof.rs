//! `/debug/pprof`: CPU, memory and lock profiles of this process while it serves, under the paths that Go's tools use.
//!
//! ```text
//!   admin thread:   request ─▶ place ─▶ (window begins) ─▶ timer … ─▶ (window ends) ─▶ permit ─▶ (symbols, format)
//!                                            │                             │                          │
//!   klad-profile:                      its own thread                its own thread    its own thread, one at a time
//! ```
//!
//! A window is the time that a profile covers. Beginning and ending a window may take a while, and loading symbols
//! reads files. So other threads do this work, and it does not block the admin thread. A window ends when its time is
//! over, even if other profiles are still being written. If a client disconnects, its window ends too. `admin` calls
//! this.

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
use crate::admin::deadline::Deadline;
use crate::admin::page::Page;
use crate::http::api_error::ApiError;
use crate::limits::{PROFILE_MAKING_TIMEOUT, PROFILES_OF_A_KIND_MAX};
use klad_base::sync;
use klad_profile::symbols::Symbols;
use klad_profile::{Name, Profile, heap, threads};

mod form;
mod kind;
mod parameters;

/// Whether [`Profiler::answer`] answers this path.
pub(super) fn is_path(path: &str) -> bool {
    path == "/debug/pprof" || path.starts_with("/debug/pprof/")
}

/// The name of the threads that begin, end and write profiles.
const THREAD: &str = "klad-profile";

/// Takes profiles. Limits how many profiles run at the same time.
#[derive(Debug)]
pub struct Profiler {
    /// One semaphore for each kind of profile. Each running profile of the kind holds a permit.
    places: [Arc<Semaphore>; Kind::ALL.len()],
    /// Has one permit, so that klad writes one profile at a time, because writing takes CPU time and memory.
    writing: Arc<Semaphore>,
}

impl Default for Profiler {
    fn default() -> Profiler {
        let places = [(); Kind::ALL.len()].map(|()| Arc::new(Semaphore::new(PROFILES_OF_A_KIND_MAX)));
        Profiler { places, writing: Arc::new(Semaphore::new(1)) }
    }
}

impl Profiler {
    /// Answers a GET or HEAD request. For HEAD, klad takes no profile. Postpones `deadline`, the end of the connection,
    /// by the time that the request may take.
    pub(super) async fn answer(
        &self,
        request: &Request<Incoming>,
        deadline: &Deadline,
    ) -> Result<Response<Page>, ApiError> {
        let is_head = request.method() == Method::HEAD;
        let query = request.uri().query().unwrap_or_default();
        let name = request.uri().path().trim_start_matches("/debug/pprof").trim_start_matches('/');
        match name {
            "" => Ok(of_type("text/html; charset=utf-8", index())),
            "cmdline" => Ok(of_type("text/plain; charset=utf-8", command_line())),
            // Nothing to look up: klad's profiles already contain the names of functions.
            "symbol" => Ok(of_type("text/plain; charset=utf-8", "num_symbols: 0\n")),
            "threads" => {
                let parameters = Parameters::read(query, &["format", "debug"])?;
                if is_head {
                    return Ok(answer_of_threads(parameters.form_given.then_some(parameters.form), Bytes::new()));
                }
                let place = self.place(Kind::Threads)?;
                deadline.postpone(PROFILE_MAKING_TIMEOUT);
                self.threads(&parameters, place).await
            }
            name => {
                let kind = Kind::named(name).ok_or(ApiError::UnknownPath)?;
                let parameters = Parameters::read(query, kind.parameters())?;
                if is_head {
                    return Ok(attachment(parameters.form, kind.name(), Bytes::new()));
                }
                let place = self.place(kind)?;
                deadline.postpone(parameters.window(kind) + PROFILE_MAKING_TIMEOUT);
                self.profile(kind, &parameters, place).await
            }
        }
    }

    fn place(&self, kind: Kind) -> Result<Place, ApiError> {
        let place = self.places[kind as usize].clone().try_acquire_owned();
        place.map(Arc::new).map_err(|_| {
            ApiError::ProfileBusy(format!(
                "{PROFILES_OF_A_KIND_MAX} profiles of this kind are running; try again when one has ended"
            ))
        })
    }

    async fn profile(&self, kind: Kind, parameters: &Parameters, place: Place) -> Result<Response<Page>, ApiError> {
        let asked = parameters.clone();
        // The new thread creates the `OpenWindow`. So if the client leaves before the admin thread gets the
        // `OpenWindow`, its `drop` still ends the window on another thread.
        let its_place = place.clone();
        let window = on_thread(&place, move || Ok(OpenWindow::new(kind.start(&asked)?, &its_place))).await?;
        tokio::time::sleep(parameters.window(kind)).await;
        let recording = on_thread(&place, move || window.take().end()).await?;
        let permit = self.writing.clone().acquire_owned().await.expect("it is never closed");
        let (form, seconds) = (parameters.form, parameters.window(kind));
        let made = on_thread(&place, move || {
            let _permit = permit;
            Ok(form.write(&with_facts(recording.named(&Symbols::of_this_process()?), seconds)))
        });
        Ok(attachment(form, kind.name(), made.await?))
    }

    /// Answers with the stacks of all threads: as a list for people, unless the client asks for another format.
    async fn threads(&self, parameters: &Parameters, place: Place) -> Result<Response<Page>, ApiError> {
        let permit = self.writing.clone().acquire_owned().await.expect("it is never closed");
        let form = parameters.form_given.then_some(parameters.form);
        let made = on_thread(&place, move || {
            let _permit = permit;
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

/// A permit for one running profile. The request and its threads share the permit, because the threads continue after
/// the client has left.
type Place = Arc<OwnedSemaphorePermit>;

/// The running window of a profile. Ending a window waits for the profiler's thread. So if the client leaves, a
/// separate thread ends the window, and the admin thread does not wait.
struct OpenWindow {
    /// `None` after [`OpenWindow::take`].
    window: Option<Window>,
    place: Place,
}

impl OpenWindow {
    fn new(window: Window, place: &Place) -> OpenWindow {
        OpenWindow { window: Some(window), place: place.clone() }
    }

    fn take(mut self) -> Window {
        self.window.take().expect("only this takes it, and only once")
    }
}

impl Drop for OpenWindow {
    fn drop(&mut self) {
        if let Some(window) = self.window.take() {
            let place = self.place.clone();
            // If no thread can be started, this thread ends the window.
            drop(sync::try_spawn_thread(THREAD, move || {
                heap::leave_this_thread_out();
                drop(window);
                drop(place);
            }));
        }
    }
}

/// Runs `make` on a new thread, and returns its result. The thread holds `place` until `make` has ended.
async fn on_thread<T: Send + 'static>(
    place: &Place,
    make: impl FnOnce() -> Result<T, klad_profile::Error> + Send + 'static,
) -> Result<T, ApiError> {
    on_spawned(|run| sync::try_spawn_thread(THREAD, run).map(drop), place, make).await
}

/// Like [`on_thread`], on a thread that `spawn` starts.
async fn on_spawned<T: Send + 'static>(
    spawn: impl FnOnce(Box<dyn FnOnce() + Send>) -> std::io::Result<()>,
    place: &Place,
    make: impl FnOnce() -> Result<T, klad_profile::Error> + Send + 'static,
) -> Result<T, ApiError> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let place = place.clone();
    // The thread is not joined. If the client has left, the result is dropped when the thread ends.
    let started = spawn(Box::new(move || {
        heap::leave_this_thread_out();
        let made = make();
        // Before the answer, after which the client may ask for another profile.
        drop(place);
        let _ = sender.send(made);
    }));
    started
        .map_err(|error| ApiError::ProfileRefused(format!("klad cannot start a thread for the profile: {error}")))?;
    let made = receiver.await.map_err(|_| ApiError::ProfileRefused("the profile was not completed".to_owned()))?;
    made.map_err(|error| match error {
        klad_profile::Error::Busy(_) => ApiError::ProfileBusy(error.to_string()),
        klad_profile::Error::Refused(_) | klad_profile::Error::Malformed(_) => {
            ApiError::ProfileRefused(error.to_string())
        }
    })
}

/// Adds the facts that each profile states, in every format: its duration and klad's version.
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

/// Returns the command line as Go's tools expect it: words that are separated by NUL bytes.
fn command_line() -> Bytes {
    use std::os::unix::ffi::OsStringExt;
    let words: Vec<Vec<u8>> = std::env::args_os().map(OsStringExt::into_vec).collect();
    words.join(&0).into()
}

/// Returns the HTML page that describes the kinds of profiles and links to them.
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
            "<dt>{name}</dt><dd>{about} {cost}<br>\
             <a href=\"/debug/pprof/{name}?{short}format=flamegraph\">flame graph</a>, \
             <a href=\"/debug/pprof/{name}?{short}format=collapsed\">text</a>, \
             <a href=\"/debug/pprof/{name}\">pprof</a></dd>",
            short = if kind.has_default_window() { "seconds=5&amp;" } else { "" },
        );
    }
    page.push_str(
        "<dt><a href=\"/debug/pprof/cmdline\">cmdline</a></dt>\
         <dd>The command line, with a NUL between two words.</dd>\n\
         </dl>\n<p>See also <a href=\"/debug/memory?format=text\">/debug/memory</a>, the parts of the memory, and \
         <a href=\"/debug/slow\">/debug/slow</a>, the slowest requests. <code>go tool pprof \
         http://HOST:PORT/debug/pprof/profile?seconds=30</code> reads each profile.</p>\n</html>\n",
    );
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sampling rate belongs to the process, so tests that start CPU profiles run one after the other.
    fn alone() -> sync::MutexGuard<'static, ()> {
        static ALONE: sync::Mutex<()> = sync::Mutex::new(());
        ALONE.lock()
    }

    fn wait<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(future)
    }

    #[test]
    fn without_a_thread_a_profile_is_rejected_and_its_place_is_free_again() {
        let places = Arc::new(Semaphore::new(1));
        let place = Arc::new(places.clone().try_acquire_owned().expect("there is one"));
        let none = |_: Box<dyn FnOnce() + Send>| Err(std::io::Error::from_raw_os_error(libc::EAGAIN));
        let rejected = wait(on_spawned(none, &place, || Ok(()))).expect_err("there is no thread");
        assert_eq!((rejected.status().as_u16(), rejected.code()), (501, "profile-refused"));
        assert!(rejected.to_string().contains("cannot start a thread"), "{rejected}");
        drop(place);
        assert_eq!(places.available_permits(), 1);
    }

    #[test]
    fn a_window_ends_with_its_time_although_another_profile_is_written() {
        let _alone = alone();
        let profiler = Profiler::default();
        // Another profile is being written, and takes long.
        let permit = profiler.writing.clone().try_acquire_owned().expect("it is free");
        let begun = klad_base::clock::now();
        let mut freed = Duration::ZERO;
        let answer = wait(async {
            let parameters = Parameters::read("seconds=0.05&format=collapsed", Kind::Cpu.parameters());
            let parameters = parameters.expect("they are good");
            let place = profiler.place(Kind::Cpu).expect("there is one");
            let naming = async {
                tokio::time::sleep(Duration::from_secs(2)).await;
                freed = klad_base::clock::now() - begun;
                drop(permit);
            };
            let (taken, ()) = tokio::join!(profiler.profile(Kind::Cpu, &parameters, place), naming);
            taken.expect("it is taken")
        });
        let Page::Whole(bytes) = answer.into_body() else { panic!("a profile is complete") };
        let text = String::from_utf8_lossy(&bytes);
        let seconds = text.split("# duration: ").nth(1).and_then(|rest| rest.split(' ').next()?.parse().ok());
        let seconds: f64 = seconds.expect("a profile has its duration");
        assert!((0.05..freed.as_secs_f64()).contains(&seconds), "the permit was free after {freed:?}: {text}");
    }

    #[test]
    fn a_window_without_a_client_ends_and_frees_its_place() {
        let _alone = alone();
        let places = Arc::new(Semaphore::new(1));
        let place = Arc::new(places.clone().try_acquire_owned().expect("there is one"));
        let parameters = Parameters::read("hz=7", Kind::Cpu.parameters()).expect("they are good");
        drop(OpenWindow::new(Kind::Cpu.start(&parameters).expect("no other is running"), &place));
        drop(place);
        let deadline = klad_base::clock::now() + Duration::from_secs(30);
        while places.available_permits() == 0 {
            assert!(klad_base::clock::now() < deadline, "its place is not free again");
            std::thread::yield_now();
        }
        // With another rate: the window before has ended.
        let parameters = Parameters::read("hz=8", Kind::Cpu.parameters()).expect("they are good");
        drop(Kind::Cpu.start(&parameters).expect("no other is running"));
    }
}
