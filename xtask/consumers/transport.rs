//! Meeting alone: a store that two clients with the same secret share.

use gaggle_core::{Rank, Store};
use gaggle_transport::{
    auth::{Credentials, Secret},
    store::{StoreClient, StoreConfig, StoreServer},
};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let creds = Credentials { job: "scratch".into(), epoch: 0, secret: Secret::random()? };
    let server = StoreServer::bind(([127, 0, 0, 1], 0).into(), &creds, StoreConfig::new(2))?;
    let limit = Duration::from_secs(5);
    let addr = server.addr().to_string();
    let one = StoreClient::connect(addr.as_str(), &creds, Rank(0), limit)?;
    let two = StoreClient::connect(addr.as_str(), &creds, Rank(1), limit)?;
    one.set("greeting", b"honk")?;
    println!("{:?}", two.get("greeting", limit)?);
    Ok(())
}
