//! Metrics of TLS.

use std::time::SystemTime;

use flatout_engine::tls::Acceptor;

use super::{Family, Kind, Source, Value};

/// Handshakes and certificates of a server.
pub struct TlsSource(pub Acceptor);

impl Source for TlsSource {
    fn collect(&self, into: &mut Vec<Family>) {
        let counted = self.0.counted();
        let mut handshakes = Family::new("flatout_tls_handshakes", Kind::Counter, "TLS handshakes by result");
        for (result, count) in
            [("full", counted.full), ("resumed", counted.resumed), ("failed", counted.failed)]
        {
            handshakes.add(&[("result", result)], Value::Count(count));
        }
        let mut days = Family::new(
            "flatout_tls_certificate_days_left",
            Kind::Gauge,
            "Days until a certificate expires; negative once it has",
        );
        let now = SystemTime::now();
        for certificate in self.0.certificates() {
            let names = certificate.names.join(" ");
            days.add(&[("names", &names)], Value::Number(certificate.days_left(now) as f64));
        }
        into.extend([handshakes, days]);
    }
}
