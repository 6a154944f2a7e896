//! Runs the action for a request that has passed all rules: an upstream, a file, a redirect, a text.

use std::rc::Rc;

use flatout_engine::{Reply, Request, RequestBody, Response};
use flatout_wire::{Head, Method, Status};

use super::answer::{Answers, Progress, write_status};
use super::compiled::{Act, CompiledCached, CompiledRoute};
use super::render::{Paths, Text, View, escape_unsafe};
use super::resolve::Resolution;
use flatout_gateway::{Caching, Edits, Finish, Forwarded, ResponseOrigin};
use flatout_push::Who;

impl CompiledCached {
    /// How the response to this request is cached; its key is written to `key`.
    fn for_request<'c>(&'c self, view: &View<'_>, key: &'c mut Vec<u8>) -> Caching<'c> {
        let mut is_set = |texts: &[Text]| {
            texts.iter().any(|text| {
                key.clear();
                text.render(view, Paths::Decoded, key);
                !key.is_empty() && key != b"0"
            })
        };
        let (is_bypassed, is_unstored) = (is_set(&self.bypass), is_set(&self.no_store));
        let key = self.key.as_ref().map(|text| {
            key.clear();
            text.render(view, Paths::Decoded, key);
            key.as_slice()
        });
        Caching {
            rules: &self.rules,
            key,
            names_authorization: self.names_authorization,
            repeats: self.repeats,
            is_bypassed,
            is_unstored,
        }
    }
}

impl Answers {
    /// Runs the action.
    pub(super) fn act(
        self: &Rc<Self>,
        request: Request<'_>,
        resolution: &Resolution<'_>,
        route: &CompiledRoute,
        mut progress: Progress,
        response: &mut Response,
    ) -> Reply {
        let head = request.head;
        if let Some(folder) = route.try_files
            && matches!(head.method, Method::Get | Method::Head)
        {
            if self.file(folder, &head, resolution, response) {
                return self.finish(&head, resolution, progress, response);
            }
            response.reset();
        }
        match &route.act {
            Act::Proxy(_) | Act::Push(_) if matches!(request.body, RequestBody::Stream(_)) => {
                return self.collect(request, route, progress);
            }
            Act::Proxy(forward) => {
                self.gather_needs(&head, resolution, &mut progress);
                let mut lines = self.lines.take();
                lines.clear();
                let view = self.compiled.view_of(&head, resolution, &progress.identity);
                route.request_fields.request_lines(&head, &view, &mut lines);
                lines.extend_from_slice(&progress.authority_lines);
                let target = resolution.target(&head);
                let mut key = self.key.take();
                let what = Forwarded {
                    forward,
                    target: &target,
                    client: resolution.client,
                    edits: Edits {
                        dropped: route.request_fields.dropped(),
                        dropped_too: route
                            .guards
                            .authority
                            .as_ref()
                            .map_or(&[], |authority| &authority.dropped),
                        left_out: &[],
                        authority: None,
                        lines: &lines,
                    },
                    finish: self.finishers(resolution).of(progress.needs),
                    caching: route.cache.as_ref().map(|cache| cache.for_request(&view, &mut key)),
                };
                let mut request = request;
                request.path = &resolution.goal.path;
                let reply = self.forwarding.forward(request, what, response);
                self.lines.replace(lines);
                self.key.replace(key);
                return reply;
            }
            Act::Push(plan) => {
                self.gather_needs(&head, resolution, &mut progress);
                // A subscriber and a long poll are counted by the limits of subscriptions while they wait, and a publish
                // by those of requests. Otherwise waiting polls would keep publishers out.
                let is_subscription = matches!(head.method, Method::Get | Method::Head);
                let _until_it_waits = is_subscription.then(|| std::mem::take(&mut progress.needs.permits));
                let finish = self.finishers(resolution).of(progress.needs);
                let Some(worker_channels) = &self.worker_channels else {
                    write_status(Status::SERVICE_UNAVAILABLE, response);
                    finish.finish(response, ResponseOrigin::Here);
                    return Reply::Now;
                };
                let who = Who { address: resolution.client.address };
                let mut request = request;
                request.path = &resolution.goal.path;
                let reply = worker_channels.call(&request, plan, who, finish.clone(), response);
                if matches!(reply, Reply::Now) {
                    finish.finish(response, ResponseOrigin::Here);
                }
                return reply;
            }
            Act::Files(folder) => {
                if !self.file(*folder, &head, resolution, response) && response.status() == Status::OK {
                    write_status(Status::NOT_FOUND, response);
                }
            }
            Act::Redirect { status, to } => {
                let location = self.location(to, &head, resolution, &progress);
                response.set_status(*status).header("Location", location);
            }
            // Taking over a connection and dropping it closes it.
            Act::Close => return Reply::Leave(Box::new(|taken| Box::pin(async move { drop(taken) }))),
            Act::Respond { status, content_type, body } => {
                let view = self.compiled.view_of(&head, resolution, &progress.identity);
                response.set_status(*status);
                body.render(&view, Paths::Decoded, response.buffer());
                if response.body_bytes().is_some_and(|body| !body.is_empty()) && !content_type.is_empty() {
                    response.header("Content-Type", content_type);
                }
            }
        }
        self.finish(&head, resolution, progress, response)
    }

    /// Responds from a folder; returns whether the folder has the file.
    fn file(
        &self,
        folder: usize,
        head: &Head<'_>,
        resolution: &Resolution<'_>,
        response: &mut Response,
    ) -> bool {
        let (Some(folder), Some(path)) = (self.folders.get(folder), resolution.file_path()) else {
            return false;
        };
        folder.call(Request::detached(*head, &path, RequestBody::NONE), response);
        response.status() != Status::NOT_FOUND
    }

    /// A redirect must not lead to a host that its rule does not name: a path that starts with two slashes would be
    /// read as a host.
    fn location(
        &self,
        to: &Text,
        head: &Head<'_>,
        resolution: &Resolution<'_>,
        progress: &Progress,
    ) -> Vec<u8> {
        let view = self.compiled.view_of(head, resolution, &progress.identity);
        let mut location = Vec::new();
        to.render(&view, Paths::Encoded, &mut location);
        escape_unsafe(&mut location);
        if !to.begins_with("//") {
            let slashes = location.iter().take_while(|&&byte| byte == b'/').count();
            location.drain(..slashes.saturating_sub(1));
        }
        location
    }
}
