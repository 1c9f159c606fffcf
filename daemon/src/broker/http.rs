//! Implements the part of HTTP/1.1 (RFC 9112) that a scraper of metrics needs: one GET, one answer, and the connection is closed.

/// The meaning of the bytes of a request that have come so far.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// More has to come.
    Incomplete,
    /// The metrics are wanted.
    Metrics,
    /// The request is for anything else; the value is the status of its answer.
    Refused(&'static str),
}

/// Bytes of a request with its headers.
pub(super) const REQUEST_BYTES: usize = 8192;

/// Looks at the bytes that have come so far.
pub(super) fn read(bytes: &[u8]) -> Asked {
    if !bytes.windows(4).any(|end| end == b"\r\n\r\n") && !bytes.windows(2).any(|end| end == b"\n\n") {
        return if bytes.len() < REQUEST_BYTES { Asked::Incomplete } else { Asked::Refused("431 Too Large") };
    }
    let line = bytes.split(|byte| *byte == b'\r' || *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (method, target, version) = (words.next(), words.next().unwrap_or_default(), words.next());
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    match (method, path) {
        _ if !version.is_some_and(|version| version.starts_with(b"HTTP/1.")) => {
            Asked::Refused("400 Bad Request")
        }
        (Some(b"GET"), b"/" | b"/metrics") => Asked::Metrics,
        (Some(b"GET"), _) => Asked::Refused("404 Not Found"),
        _ => Asked::Refused("405 Method Not Allowed"),
    }
}

/// An answer with this status, and text in the format of metrics.
pub(super) fn answer(status: &str, text: &str) -> Vec<u8> {
    let length = text.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n\
         Content-Length: {length}\r\nConnection: close\r\n\r\n{text}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_get_of_metrics_is_one_and_nothing_else_is() {
        for good in [
            "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n",
            "GET / HTTP/1.0\n\n",
            "GET /metrics?a=b HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(read(good.as_bytes()), Asked::Metrics, "{good}");
            assert_eq!(read(&good.as_bytes()[..good.len() - 1]), Asked::Incomplete, "{good}");
        }
        let bad = [
            ("GET /secret HTTP/1.1\r\n\r\n", "404 Not Found"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"),
            ("GET /metrics\r\n\r\n", "400 Bad Request"),
            ("\r\n\r\n", "400 Bad Request"),
        ];
        for (request, status) in bad {
            assert_eq!(read(request.as_bytes()), Asked::Refused(status), "{request}");
        }
        assert_eq!(read(&[b'x'; REQUEST_BYTES]), Asked::Refused("431 Too Large"));
    }
}
