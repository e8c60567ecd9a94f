//! Runs Lua scripts of wrk and wrk2 unchanged: `request`, `response`, `setup`, `init`, `delay`, `done`, `wrk` and its
//! functions.
//!
//! ```text
//!     the run's state ── setup(thread) ──▶ a state for each thread ── init(args), request(), delay(), response(…)
//!            ▲                                         │
//!            └──────────────── done(…), thread:get ────┘
//! ```
//!
//! As in wrk, every thread has its own Lua state, in which the whole script runs again. A counter in the script
//! therefore counts the requests of one thread. `script.lua` contains what wrk does in Lua; this module contains what
//! wrk does in C. A script is a program of the user who starts the run, and has all of that user's permissions.
//! Called by `scripts`.

use std::net::{SocketAddr, TcpStream, ToSocketAddrs as _};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use anyhow::{Context as _, anyhow, ensure};
use mlua::{
    AnyUserData, Function, Lua, LuaString, MetaMethod, Table, UserData, UserDataFields, UserDataMethods, Value,
};

use crate::author::{Author, Pipeline};
use crate::response::header_lines;
use crate::schedule::Nanos;
use crate::script_report;
use klad_base::sync::Mutex;

/// wrk's table, and the code that wrk runs around the functions of a script.
const PRELUDE: &str = include_str!("script.lua");

/// Redirects the output of a script to the standard error.
const QUIET: &str = "
    io.stdout = io.stderr
    io.output(io.stderr)
    function print(...)
        for at = 1, select('#', ...) do io.write(at > 1 and '\\t' or '', tostring((select(at, ...)))) end
        io.write('\\n')
    end";

/// The largest nesting depth of a table that passes from one state to another.
const DEPTH_MAX: usize = 64;

/// The longest wait of one call of `wrk.connect`. `wrk.resolve` calls it for each address of the host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The facts about the run that a script can see.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The host of the URL, without brackets.
    pub host: String,
    /// The port as given in the URL; `None` if the URL has none.
    pub port: Option<String>,
    /// Path and query of the URL.
    pub path: String,
    /// Names and values of `--header`.
    pub headers: Vec<(String, String)>,
    /// The URL, then the arguments for the script.
    pub arguments: Vec<String>,
    /// The address to which threads connect, unless the script chooses another.
    pub address: SocketAddr,
    /// Whether the output of the script goes to the standard error, because the result is on the standard output.
    pub quiet: bool,
}

/// A script that was loaded for every thread.
#[derive(Debug)]
pub struct Script {
    lua: Lua,
    threads: Vec<Arc<Thread>>,
    /// The number of requests in the first start. All starts are taken to have as many.
    pub pipeline: u32,
}

/// The state of a thread that its own Lua state and that of the run share.
#[derive(Debug)]
struct Thread {
    lua: Lua,
    address: Mutex<SocketAddr>,
    stopped: AtomicBool,
}

impl Script {
    /// Runs the script once for the run and once for each of `threads` threads, including `setup` and `init`. Returns
    /// the script and one author for each thread. As in wrk, calls the first thread's `request` once, to check its
    /// result and to count the requests in it. This result is not sent.
    ///
    /// # Errors
    /// If the script cannot be read, fails, or makes text that is not an HTTP request.
    pub fn load(path: &Path, setting: &Setting, threads: usize) -> anyhow::Result<(Script, Vec<Box<dyn Author>>)> {
        let source = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = path.display().to_string();
        let load = || state(&source, &name, setting).map_err(failed);
        let lua = load()?;
        resolve(&lua, setting).map_err(failed)?;
        let mut script = Script { lua, threads: Vec::new(), pipeline: 1 };
        let mut authors: Vec<Box<dyn Author>> = Vec::new();
        for number in 0..threads {
            let address = Mutex::new(setting.address);
            let thread = Arc::new(Thread { lua: load()?, address, stopped: AtomicBool::new(false) });
            script.set_up_thread(&thread, setting).map_err(failed)?;
            let mut author = LuaAuthor::new(thread.clone()).map_err(failed)?;
            if number == 0 {
                let mut first = Vec::new();
                let written = author.next(&mut first).map_err(|why| anyhow!(why))?;
                script.pipeline = written.map_or(1, |written| written.requests);
                ensure!(
                    written.is_none() || requests_in(&first).is_some(),
                    "the script's request() returned text that is not an HTTP request: {}",
                    String::from_utf8_lossy(&first[..first.len().min(200)]).escape_debug()
                );
            }
            script.threads.push(thread);
            authors.push(Box::new(author));
        }
        Ok((script, authors))
    }

    /// Calls `setup` in the state of the run, then `init` in that of the thread.
    fn set_up_thread(&self, thread: &Arc<Thread>, setting: &Setting) -> mlua::Result<()> {
        let own: Table = thread.lua.globals().get("wrk")?;
        own.set("thread", handle(&thread.lua, thread)?)?;
        let run: Table = self.lua.globals().get("wrk")?;
        run.get::<Function>("setup")?.call::<()>(handle(&self.lua, thread)?)?;
        let arguments = thread.lua.create_table()?;
        for (index, argument) in setting.arguments.iter().enumerate() {
            arguments.raw_set(index, argument.as_str())?;
        }
        own.get::<Function>("init")?.call(arguments)
    }

    /// Calls `done` if the script has it, and flushes the script's output.
    ///
    /// # Errors
    /// If `done` fails.
    pub fn done(&self, report: &script_report::Report) -> anyhow::Result<()> {
        let call = || -> mlua::Result<()> {
            if let Value::Function(done) = self.lua.globals().get("done")? {
                let (summary, latency, requests) = report.in_lua(&self.lua)?;
                done.call::<()>((summary, latency, requests))?;
            }
            self.lua.load("io.stdout:flush()").exec()
        };
        call().map_err(failed)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that `map_err` needs")]
fn failed(error: mlua::Error) -> anyhow::Error {
    anyhow!("the script failed: {error}")
}

/// Creates a Lua state and runs the script in it.
fn state(source: &[u8], name: &str, setting: &Setting) -> mlua::Result<Lua> {
    let lua = new_state();
    if setting.quiet {
        lua.load(QUIET).exec()?;
    }
    lua.load(PRELUDE).set_name("=wrk").exec()?;
    let wrk: Table = lua.globals().get("wrk")?;
    wrk.set("host", setting.host.as_str())?;
    wrk.set("port", setting.port.as_deref())?;
    wrk.set("path", setting.path.as_str())?;
    let headers: Table = wrk.get("headers")?;
    for (name, value) in &setting.headers {
        headers.set(name.as_str(), value.as_str())?;
    }
    wrk.set("lookup", lua.create_function(|_, (host, service): (String, String)| lookup(&host, &service))?)?;
    wrk.set("connect", lua.create_function(|_, address: AnyUserData| connects(&address))?)?;
    lua.load(source).set_name(format!("@{name}")).exec()?;
    Ok(lua)
}

#[expect(unsafe_code, reason = "scripts get LuaJIT with all of its libraries")]
fn new_state() -> Lua {
    // SAFETY: `ffi`, `debug` and C modules can do to this process what the user who gave the script can do anyway,
    // because the script is a program of that user. wrk also gives scripts these libraries, and existing scripts use
    // them.
    unsafe { Lua::unsafe_new() }
}

/// Fills `wrk.addrs`. If no address accepts a connection, it contains the address that klad bench has chosen.
fn resolve(lua: &Lua, setting: &Setting) -> mlua::Result<()> {
    let wrk: Table = lua.globals().get("wrk")?;
    let service = setting.port.clone().unwrap_or_else(|| "http".to_owned());
    wrk.get::<Function>("resolve")?.call::<()>((setting.host.as_str(), service))?;
    let addresses: Table = wrk.get("addrs")?;
    if addresses.raw_len() == 0 {
        addresses.push(lua.create_userdata(Address(setting.address))?)?;
    }
    Ok(())
}

fn lookup(host: &str, service: &str) -> mlua::Result<Vec<Address>> {
    let port = match service {
        "http" => 80,
        "https" => 443,
        number => number.parse().map_err(|_| mlua::Error::runtime(format!("{service:?} is not a port")))?,
    };
    let found =
        (host, port).to_socket_addrs().map_err(|why| mlua::Error::runtime(format!("cannot resolve {host}: {why}")))?;
    Ok(found.map(Address).collect())
}

fn connects(address: &AnyUserData) -> mlua::Result<bool> {
    let Address(address) = *address.borrow::<Address>()?;
    Ok(TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).is_ok())
}

/// Returns the value that wrk's own objects give for an unknown field: the field's name.
pub(super) fn missing_field<T>(lua: &Lua, _: &T, name: Value) -> mlua::Result<Option<LuaString>> {
    lua.coerce_string(name)
}

/// An address that `wrk.lookup` has found.
struct Address(SocketAddr);

impl UserData for Address {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_meta_method(MetaMethod::ToString, |_, this, ()| Ok(this.0.to_string()));
    }
}

/// A thread as scripts see it. The reference is weak, because the thread's own Lua state holds a handle: with a strong
/// reference, the thread would keep itself in memory.
struct ThreadHandle(Weak<Thread>);

fn handle(lua: &Lua, thread: &Arc<Thread>) -> mlua::Result<AnyUserData> {
    lua.create_userdata(ThreadHandle(Arc::downgrade(thread)))
}

impl ThreadHandle {
    fn thread(&self) -> mlua::Result<Arc<Thread>> {
        self.0.upgrade().ok_or_else(|| mlua::Error::runtime("the thread has ended"))
    }
}

impl UserData for ThreadHandle {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_field_method_get("addr", |_, this| Ok(Address(*this.thread()?.address.lock())));
        fields.add_field_method_set("addr", |_, this, address: AnyUserData| {
            *this.thread()?.address.lock() = address.borrow::<Address>()?.0;
            Ok(())
        });
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_meta_method(MetaMethod::Index, missing_field);
        methods.add_method("get", |lua, this, name: LuaString| {
            let thread = this.thread()?;
            let theirs = &thread.lua;
            let value: Value = theirs.globals().get(theirs.create_string(name.as_bytes())?)?;
            PortableValue::of(&value, 0)?.into_value(lua)
        });
        methods.add_method("set", |_, this, (name, value): (LuaString, Value)| {
            let thread = this.thread()?;
            let theirs = &thread.lua;
            let (name, value) = (PortableValue::string(&name), PortableValue::of(&value, 0)?.into_value(theirs)?);
            theirs.globals().set(theirs.create_string(name)?, value)
        });
        methods.add_method("stop", |_, this, ()| {
            this.thread()?.stopped.store(true, Ordering::Relaxed);
            Ok(())
        });
    }
}

/// A value that passes from one Lua state to another.
enum PortableValue {
    Nil,
    Boolean(bool),
    Integer(mlua::Integer),
    Number(f64),
    Text(Vec<u8>),
    Table(Vec<(PortableValue, PortableValue)>),
    Address(SocketAddr),
}

impl PortableValue {
    fn string(text: &LuaString) -> Vec<u8> {
        text.as_bytes().to_vec()
    }

    fn of(value: &Value, depth: usize) -> mlua::Result<PortableValue> {
        Ok(match value {
            Value::Nil => PortableValue::Nil,
            Value::Boolean(value) => PortableValue::Boolean(*value),
            Value::Integer(value) => PortableValue::Integer(*value),
            Value::Number(value) => PortableValue::Number(*value),
            Value::String(value) => PortableValue::Text(PortableValue::string(value)),
            Value::Table(_) if depth == DEPTH_MAX => {
                return Err(mlua::Error::runtime(
                    "a table that contains itself cannot pass from one thread to another",
                ));
            }
            Value::Table(table) => {
                let mut pairs = Vec::new();
                for pair in table.pairs::<Value, Value>() {
                    let (key, value) = pair?;
                    pairs.push((PortableValue::of(&key, depth + 1)?, PortableValue::of(&value, depth + 1)?));
                }
                PortableValue::Table(pairs)
            }
            Value::UserData(data) if data.is::<Address>() => PortableValue::Address(data.borrow::<Address>()?.0),
            other => {
                let kind = other.type_name();
                return Err(mlua::Error::runtime(format!("a {kind} cannot pass from one thread to another")));
            }
        })
    }

    fn into_value(self, lua: &Lua) -> mlua::Result<Value> {
        Ok(match self {
            PortableValue::Nil => Value::Nil,
            PortableValue::Boolean(value) => Value::Boolean(value),
            PortableValue::Integer(value) => Value::Integer(value),
            PortableValue::Number(value) => Value::Number(value),
            PortableValue::Text(value) => Value::String(lua.create_string(value)?),
            PortableValue::Address(address) => Value::UserData(lua.create_userdata(Address(address))?),
            PortableValue::Table(pairs) => {
                let table = lua.create_table()?;
                for (key, value) in pairs {
                    table.raw_set(key.into_value(lua)?, value.into_value(lua)?)?;
                }
                Value::Table(table)
            }
        })
    }
}

/// The script as the author of one thread's requests.
#[derive(Debug)]
struct LuaAuthor {
    thread: Arc<Thread>,
    requests: RequestSource,
    wants_answers: bool,
    delays: bool,
}

#[derive(Debug)]
enum RequestSource {
    /// The script's `request` makes each request.
    Each,
    /// All requests are equal.
    Always { bytes: Vec<u8>, pipeline: Pipeline },
}

impl LuaAuthor {
    fn new(thread: Arc<Thread>) -> mlua::Result<LuaAuthor> {
        let globals = thread.lua.globals();
        let is_function = |name: &str| -> mlua::Result<bool> { Ok(matches!(globals.get(name)?, Value::Function(_))) };
        let requests = if is_function("request")? {
            RequestSource::Each
        } else {
            let always: Function = globals.get::<Table>("wrk")?.get("request")?;
            let bytes = always.call::<LuaString>(())?.as_bytes().to_vec();
            let pipeline = requests_in(&bytes).unwrap_or(Pipeline { requests: 1, bodiless: 0 });
            RequestSource::Always { bytes, pipeline }
        };
        let (wants_answers, delays) = (is_function("response")?, is_function("delay")?);
        Ok(LuaAuthor { thread, requests, wants_answers, delays })
    }

    /// Returns the present value of a global function, because scripts replace functions while they run.
    fn now(&self, name: &str) -> mlua::Result<Option<Function>> {
        Ok(match self.thread.lua.globals().get(name)? {
            Value::Function(function) => Some(function),
            _ => None,
        })
    }

    /// Returns the result of `request`, or of `wrk.request` if `request` is not a function any more.
    fn call_request(&self) -> mlua::Result<Value> {
        let request = match self.now("request")? {
            Some(request) => request,
            None => self.thread.lua.globals().get::<Table>("wrk")?.get("request")?,
        };
        request.call(())
    }
}

impl Author for LuaAuthor {
    fn next(&mut self, into: &mut Vec<u8>) -> Result<Option<Pipeline>, String> {
        match &self.requests {
            RequestSource::Always { bytes, pipeline } => {
                into.extend_from_slice(bytes);
                Ok(Some(*pipeline))
            }
            RequestSource::Each => {
                let made = self.call_request().map_err(|error| format!("request() failed: {error}"))?;
                if made.is_nil() && self.has_stopped() {
                    return Ok(None);
                }
                let kind = made.type_name();
                // A number becomes its digits.
                let Ok(Some(made)) = self.thread.lua.coerce_string(made) else {
                    return Err(format!("request() returned a {kind} instead of the text of a request"));
                };
                let begin = into.len();
                into.extend_from_slice(&made.as_bytes());
                // Text that is not a request is sent nevertheless: the user may want to see how the server reacts.
                Ok(Some(requests_in(&into[begin..]).unwrap_or(Pipeline { requests: 1, bodiless: 0 })))
            }
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float as an integer saturates; NaN is 0"
    )]
    fn delay(&mut self) -> Result<Option<Nanos>, String> {
        if !self.delays {
            return Ok(None);
        }
        let call = || -> mlua::Result<Option<f64>> {
            self.now("delay")?.map_or(Ok(None), |delay| delay.call::<Option<f64>>(()))
        };
        let millis = call().map_err(|error| format!("delay() failed: {error}"))?;
        // Whole milliseconds, as in wrk; nil means no delay.
        Ok(Some((millis.unwrap_or(0.0) as u64).saturating_mul(1_000_000)))
    }

    fn wants_answers(&self) -> bool {
        self.wants_answers
    }

    fn answered(&mut self, status: u16, head: &[u8], body: &[u8]) -> Result<(), String> {
        let lua = &self.thread.lua;
        let call = || -> mlua::Result<()> {
            let Some(response) = self.now("response")? else { return Ok(()) };
            let headers = lua.create_table()?;
            for (name, value) in header_lines(head) {
                headers.raw_set(lua.create_string(name)?, lua.create_string(value)?)?;
            }
            response.call((status, headers, lua.create_string(body)?))
        };
        call().map_err(|error| format!("response() failed: {error}"))
    }

    fn has_stopped(&self) -> bool {
        self.thread.stopped.load(Ordering::Relaxed)
    }

    fn address(&self) -> SocketAddr {
        *self.thread.address.lock()
    }
}

/// Counts the requests in `bytes`; `None` if they are not complete HTTP/1 requests.
fn requests_in(mut bytes: &[u8]) -> Option<Pipeline> {
    let mut written = Pipeline { requests: 0, bodiless: 0 };
    while !bytes.is_empty() {
        let mut headers = vec![httparse::EMPTY_HEADER; 16];
        let (request, head) = loop {
            // There cannot be more headers than lines.
            let (count, lines) = (headers.len(), memchr::memchr_iter(b'\n', bytes).count());
            let mut request = httparse::Request::new(&mut headers);
            match request.parse(bytes) {
                Ok(httparse::Status::Complete(head)) => break (request, head),
                Err(httparse::Error::TooManyHeaders) if count < lines => headers.resize(lines, httparse::EMPTY_HEADER),
                _ => return None,
            }
        };
        if request.method == Some("HEAD") {
            written.bodiless |= 1_u64.checked_shl(written.requests).unwrap_or(0);
        }
        written.requests += 1;
        let named = |name: &str| request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
        if named("Transfer-Encoding").is_some() {
            // Only the chunks of the body say where it ends. They are not read here, and no request is expected after
            // the body.
            return Some(written);
        }
        let length = match named("Content-Length") {
            Some(length) => std::str::from_utf8(length.value).ok()?.trim().parse().ok()?,
            None => 0,
        };
        bytes = bytes.get(head..)?.get(length..)?;
    }
    (written.requests > 0).then_some(written)
}

#[cfg(test)]
mod tests;
