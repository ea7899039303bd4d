//! Who may join: secrets and the handshakes that prove them.
