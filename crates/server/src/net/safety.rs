//! Tokens and TLS: who may connect, and what each client may do. `config` creates this.

use std::sync::Arc;

use crate::net::tls::{Handshakes, TlsSettings};
use crate::tokens::Tokens;
use klad_base::metrics::text::{Kind, Page};
use klad_base::metrics::{Counter, Source};

/// The access settings of both listeners.
#[derive(Clone, Debug, Default)]
pub struct Safety {
    /// The tokens that klad accepts. `None` means that every client may do everything.
    pub tokens: Option<Arc<Tokens>>,
    /// The TLS settings. `None` means no TLS.
    pub tls: Option<Arc<TlsSettings>>,
    /// Whether the admin listener uses TLS too.
    pub admin_tls: bool,
}

impl Safety {
    /// Whether the admin listener accepts clients that the data listener rejects. This is so if the data listener needs
    /// client certificates and `--admin-tls` is off.
    #[must_use]
    pub fn admin_is_weaker(&self) -> bool {
        !self.admin_tls && self.tls.as_ref().is_some_and(|tls| tls.needs_client_certificate())
    }

    /// Reads the files of tokens, certificates and key again, and logs the result. If a file is unusable, klad logs an
    /// error and keeps the old contents. Returns whether there was no error.
    #[must_use]
    pub fn reload(&self) -> bool {
        let mut good = true;
        if let Some(tokens) = &self.tokens {
            match tokens.reload() {
                Ok(count) => tracing::info!(count, "reloaded the tokens"),
                Err(error) => {
                    good = false;
                    tracing::error!(%error, "cannot reload the tokens; klad keeps the previous ones");
                }
            }
        }
        if let Some(tls) = &self.tls {
            match tls.reload() {
                Ok(()) => tracing::info!(expires_unix_s = tls.expires_unix_s(), "reloaded the certificate"),
                Err(error) => {
                    good = false;
                    tracing::error!(%error, "cannot reload the certificate; klad keeps the previous one");
                }
            }
        }
        good
    }
}

impl Source for Safety {
    /// Without TLS this writes the same series with the value 0. Only the expiry of the certificate is left out.
    fn write(&self, page: &mut Page) {
        let handshakes = self.tls.as_ref().map(|tls| &tls.handshakes);
        let help = "TLS handshakes on both listeners, by result.";
        let mut family = page.family("klad_tls_handshakes_total", Kind::Counter, help);
        let count = |of: fn(&Handshakes) -> &Counter| handshakes.map_or(0, |handshakes| of(handshakes).get());
        family.whole(&[("result", "done")], count(|handshakes| &handshakes.done));
        family.whole(&[("result", "failed")], count(|handshakes| &handshakes.failed));
        family.whole(&[("result", "late")], count(|handshakes| &handshakes.late));
        let help = "When the certificate that clients see expires.";
        let mut family = page.family("klad_tls_certificate_expiry_timestamp_seconds", Kind::Gauge, help);
        if let Some(expires) = self.tls.as_ref().and_then(|tls| tls.expires_unix_s()) {
            family.whole(&[], expires);
        }
    }
}
