//! Who may connect, and what for: tokens and TLS, and what happens when their files have changed. Made by `config`.

use std::sync::Arc;

use crate::net::tls::{Handshakes, TlsSettings};
use crate::tokens::Tokens;
use klad_base::metrics::text::{Kind, Page};
use klad_base::metrics::{Counter, Source};

/// Of both listeners.
#[derive(Clone, Debug, Default)]
pub struct Safety {
    /// `None`: everybody may do everything.
    pub tokens: Option<Arc<Tokens>>,
    /// `None`: in clear.
    pub tls: Option<Arc<TlsSettings>>,
    /// Whether the admin listener speaks TLS as well.
    pub admin_tls: bool,
}

impl Safety {
    /// Reads tokens, certificate and key again, and says in the log what came of it. What cannot be used changes nothing: the
    /// operator sees an error, and clients see what they have seen before. `false`: there was an error.
    #[must_use]
    pub fn reload(&self) -> bool {
        let mut good = true;
        if let Some(tokens) = &self.tokens {
            match tokens.reload() {
                Ok(count) => tracing::info!(count, "reloaded the tokens"),
                Err(error) => {
                    good = false;
                    tracing::error!(%error, "the tokens are as they were");
                }
            }
        }
        if let Some(tls) = &self.tls {
            match tls.reload() {
                Ok(()) => tracing::info!(expires_unix_s = tls.expires_unix_s(), "reloaded the certificate"),
                Err(error) => {
                    good = false;
                    tracing::error!(%error, "the certificate is as it was");
                }
            }
        }
        good
    }
}

impl Source for Safety {
    /// Every series is there without TLS, too, but the certificate's.
    fn write(&self, page: &mut Page) {
        let handshakes = self.tls.as_ref().map(|tls| &tls.handshakes);
        let help = "Handshakes of TLS, by how they ended; both listeners.";
        let mut family = page.family("klad_tls_handshakes_total", Kind::Counter, help);
        let count = |of: fn(&Handshakes) -> &Counter| handshakes.map_or(0, |handshakes| of(handshakes).get());
        family.whole(&[("result", "done")], count(|handshakes| &handshakes.done));
        family.whole(&[("result", "failed")], count(|handshakes| &handshakes.failed));
        family.whole(&[("result", "late")], count(|handshakes| &handshakes.late));
        let help = "When the certificate that is shown to clients expires.";
        let mut family = page.family("klad_tls_certificate_expiry_timestamp_seconds", Kind::Gauge, help);
        if let Some(expires) = self.tls.as_ref().and_then(|tls| tls.expires_unix_s()) {
            family.whole(&[], expires);
        }
    }
}
