//! As the entry is, without its io_uring.

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;

use xitca_http::HttpServiceBuilder;
use xitca_http::body::Once;
use xitca_http::bytes::Bytes;
use xitca_http::h1::RequestBody;
use xitca_http::http::const_header_value::{JSON, TEXT_HTML_UTF8, TEXT_UTF8};
use xitca_http::http::header::{CONTENT_TYPE, HeaderValue, SERVER};
use xitca_http::http::{self, IntoResponse, RequestExt, StatusCode};
use xitca_http::util::middleware::context::{Context, ContextBuilder};
use xitca_http::util::service::route::get;
use xitca_http::util::service::router::{Router, RouterError};
use xitca_postgres::iter::AsyncLendingIterator;
use xitca_postgres::statement::Statement;
use xitca_postgres::types::Type;
use xitca_postgres::{Client, Execute, Postgres};
use xitca_service::{Service, ServiceExt, fn_service};
use xitca_unsafe_collection::bytes::BytesStr;

use crate::database::{World, random_number};
use crate::fortunes::{self, Fortune};
use crate::{HELLO, Outcome, PLAIN, bounded};

type Failure = Box<dyn Error + Send + Sync>;
type Request = http::Request<RequestExt<RequestBody>>;
type Response = http::Response<Once<Bytes>>;
type Ctx<'a> = Context<'a, Request, Database>;

pub fn run(address: SocketAddr) -> Outcome {
    let service = Router::new()
        .insert("/plaintext", get(fn_service(async |ctx: Ctx| {
            Ok::<_, Failure>(response(ctx.into_parts().0, TEXT_UTF8, Bytes::from_static(PLAIN.as_bytes())))
        })))
        .insert("/json", get(fn_service(async |ctx: Ctx| json(ctx.into_parts().0, &HELLO))))
        .insert("/db", get(fn_service(async |ctx: Ctx| {
            let (request, database) = ctx.into_parts();
            json(request, &database.world().await?)
        })))
        .insert("/queries", get(fn_service(async |ctx: Ctx| {
            let (request, database) = ctx.into_parts();
            let count = count(&request);
            json(request, &database.worlds(count).await?)
        })))
        .insert("/updates", get(fn_service(async |ctx: Ctx| {
            let (request, database) = ctx.into_parts();
            let count = count(&request);
            json(request, &database.updated(count).await?)
        })))
        .insert("/cached-queries", get(fn_service(async |ctx: Ctx| {
            let (request, database) = ctx.into_parts();
            let count = count(&request);
            json(request, &database.cached(count))
        })))
        .insert("/fortunes", get(fn_service(async |ctx: Ctx| {
            let (request, database) = ctx.into_parts();
            let page = database.fortunes().await?;
            Ok::<_, Failure>(response(request, TEXT_HTML_UTF8, page.into()))
        })))
        .enclosed(ContextBuilder::new(Database::connect))
        .enclosed_fn(async |service, request| {
            let mut response = service.call(request).await.unwrap_or_else(failed);
            response.headers_mut().insert(SERVER, HeaderValue::from_static("x"));
            Ok::<_, Infallible>(response)
        })
        .enclosed(HttpServiceBuilder::h1());
    Ok(xitca_server::Builder::new().worker_threads(1).bind("xitca-web", address, service)?.build().wait()?)
}

fn count(request: &Request) -> usize {
    bounded(request.uri().query().and_then(|query| query.split_once('=')).map(|(_, count)| count))
}

fn json(request: Request, value: &impl serde::Serialize) -> Result<Response, Failure> {
    Ok(response(request, JSON, serde_json::to_vec(value)?.into()))
}

fn response(request: Request, content_type: HeaderValue, body: Bytes) -> Response {
    let mut response = request.into_response(body);
    response.headers_mut().insert(CONTENT_TYPE, content_type);
    response
}

fn failed(error: RouterError<Failure>) -> Response {
    let mut response = http::Response::new(Once::new(Bytes::new()));
    *response.status_mut() = match error {
        RouterError::Match(_) => StatusCode::NOT_FOUND,
        RouterError::NotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
        RouterError::Service(_) => StatusCode::INTERNAL_SERVER_ERROR,
    };
    response
}

struct Database {
    client: Client,
    world: Statement,
    fortunes: Statement,
    update: Statement,
    cache: Vec<World>,
}

impl Database {
    async fn connect() -> Result<Database, Failure> {
        let (client, driver) = Postgres::new(std::env::var("DATABASE_URL")?).connect().await?;
        tokio::task::spawn(driver.into_future());
        let named = Statement::named;
        let world = named("SELECT id, randomnumber FROM world WHERE id = $1", &[Type::INT4]);
        let update = named(
            "UPDATE world SET randomnumber = new.number
             FROM (SELECT unnest($1) AS id, unnest($2) AS number) AS new WHERE world.id = new.id",
            &[Type::INT4_ARRAY, Type::INT4_ARRAY],
        );
        let world = world.execute(&client).await?.leak();
        let update = update.execute(&client).await?.leak();
        let fortunes = named("SELECT id, message FROM fortune", &[]).execute(&client).await?.leak();
        let mut cache = Vec::new();
        for id in 1..=10_000 {
            let mut rows = world.bind([id]).query(&client).await?;
            let row = rows.try_next().await?.ok_or("no such world")?;
            cache.push(World { id: row.get(0), random_number: row.get(1) });
        }
        Ok(Database { client, world, fortunes, update, cache })
    }

    async fn world(&self) -> Result<World, Failure> {
        let mut rows = self.world.bind([random_number()]).query(&self.client).await?;
        let row = rows.try_next().await?.ok_or("no such world")?;
        Ok(World { id: row.get(0), random_number: row.get(1) })
    }

    async fn worlds(&self, count: usize) -> Result<Vec<World>, Failure> {
        let asked: Vec<_> = (0..count).map(|_| self.world.bind([random_number()]).query(&self.client)).collect();
        let mut worlds = Vec::with_capacity(count);
        for rows in asked {
            let mut rows = rows.await?;
            let row = rows.try_next().await?.ok_or("no such world")?;
            worlds.push(World { id: row.get(0), random_number: row.get(1) });
        }
        Ok(worlds)
    }

    /// The update is sent before the rows have arrived, as in the entry.
    async fn updated(&self, count: usize) -> Result<Vec<World>, Failure> {
        let mut ids: Vec<i32> = (0..count).map(|_| random_number()).collect();
        ids.sort_unstable();
        let numbers: Vec<i32> = ids.iter().map(|_| random_number()).collect();
        let asked: Vec<_> = ids.iter().map(|id| self.world.bind([*id]).query(&self.client)).collect();
        let update = self.update.bind([&ids, &numbers]).execute(&self.client);
        for rows in asked {
            rows.await?.try_next().await?.ok_or("no such world")?;
        }
        update.await?;
        Ok(ids.iter().zip(&numbers).map(|(id, number)| World { id: *id, random_number: *number }).collect())
    }

    fn cached(&self, count: usize) -> Vec<World> {
        (0..count).map(|_| self.cache[fastrand::usize(..self.cache.len())]).collect()
    }

    async fn fortunes(&self) -> Result<String, Failure> {
        let mut rows = self.fortunes.query(&self.client).await?;
        let mut fortunes = Vec::with_capacity(16);
        while let Some(row) = rows.try_next().await? {
            fortunes.push(Fortune { id: row.get(0), message: row.get_zc::<BytesStr>(1) });
        }
        Ok(fortunes::page(fortunes))
    }
}
