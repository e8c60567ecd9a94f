//! Reverse proxies before klad, with the configuration that `docs/proxies.md` recommends.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::programs::program;
use super::{Client, wait_until};

/// A kind of proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Nginx,
    Haproxy,
    /// nginx with a path in `proxy_pass`, which changes keys. `docs/proxies.md` warns of it.
    NginxWithPath,
}

pub(crate) const KINDS: [Kind; 3] = [Kind::Nginx, Kind::Haproxy, Kind::NginxWithPath];

/// A running proxy. Dropping it ends the process.
pub(crate) struct Proxy {
    child: Child,
    pub(crate) address: SocketAddr,
    _directory: TempDir,
}

/// Returns the document.
pub(crate) fn document() -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/proxies.md")).unwrap()
}

/// Returns the block of the document in this language.
fn block(language: &str) -> String {
    let document = document();
    let (_, after) = document.split_once(&format!("```{language}\n")).expect("a block of this language");
    after.split("```").next().expect("an end").to_owned()
}

/// The parts of nginx's configuration that the document leaves to the system. nginx has one process, so that no other
/// process survives it.
const NGINX: &str = "daemon off;
master_process off;
pid nginx.pid;
events {}
http {
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
";

impl Proxy {
    /// Starts a proxy before `klad`.
    pub(crate) fn start(kind: Kind, klad: SocketAddr) -> Proxy {
        // Another process may take the port before the proxy does.
        (0..10).find_map(|_| Proxy::try_start(kind, klad)).expect("the proxy starts; its messages are above")
    }

    fn try_start(kind: Kind, klad: SocketAddr) -> Option<Proxy> {
        let directory = tempfile::tempdir().unwrap();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let replace = |text: String| {
            assert!(text.contains("127.0.0.1:8080") && text.contains("127.0.0.1:8090"), "{text}");
            let text = text.replace("127.0.0.1:8080", &klad.to_string());
            text.replace("127.0.0.1:8090", &address.to_string())
        };
        let path = directory.path().join("configuration");
        let mut command = match kind {
            Kind::Haproxy => {
                std::fs::write(&path, replace(block("haproxy"))).unwrap();
                let mut command = Command::new(program("haproxy"));
                command.arg("-db").arg("-f").arg(&path);
                command
            }
            Kind::Nginx | Kind::NginxWithPath => {
                let mut server = replace(block("nginx"));
                if kind == Kind::NginxWithPath {
                    server = server.replace(&format!("http://{klad};"), &format!("http://{klad}/;"));
                    assert!(server.contains("/;"), "{server}");
                }
                std::fs::write(&path, format!("{NGINX}{server}}}\n")).unwrap();
                let mut command = Command::new(program("nginx"));
                command.arg("-p").arg(directory.path()).arg("-c").arg(&path).args(["-e", "stderr"]);
                command
            }
        };
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("{kind:?} cannot be run ({error}): tools/setup.sh installs it"));
        let mut ended = false;
        wait_until("the proxy answers or ends", || {
            ended = child.try_wait().unwrap().is_some();
            ended
                || Client::try_connect(address).is_ok_and(|mut client| {
                    client.try_request("GET", "/v0/status", &[], None).is_ok_and(|answer| answer.status == 200)
                })
        });
        (!ended).then_some(Proxy { child, address, _directory: directory })
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(self.address)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
