//! Runs the action for a request that has passed all rules: an upstream, a file, a redirect, a text.

use flatout_engine::{Reply, Request, RequestBody, Response};
use flatout_wire::{Head, Method, Status};

use super::answer::{Answers, Progress, write_status};
use super::compiled::{Act, Cached, Route};
use super::forward::{Caching, Edits, Finish, Forwarded, MadeBy};
use super::render::{Paths, Text, View, escape_unsafe};
use super::settle::Settled;
use crate::push::Who;

impl Cached {
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
        &self,
        request: Request<'_>,
        settled: &Settled<'_>,
        route: &Route,
        mut progress: Progress,
        response: &mut Response,
    ) -> Reply {
        let head = request.head;
        if let Some(folder) = route.try_files
            && matches!(head.method, Method::Get | Method::Head)
        {
            if self.file(folder, &head, settled, response) {
                return self.finish(&head, settled, progress, response);
            }
            response.reset();
        }
        match &route.act {
            Act::Proxy(forward) => {
                self.gather_needs(&head, settled, &mut progress);
                let mut lines = self.lines.take();
                lines.clear();
                let view = self.compiled.view_of(&head, settled, &progress.identity);
                route.request_fields.request_lines(&head, &view, &mut lines);
                lines.extend_from_slice(&progress.authority_lines);
                let target = settled.target(&head);
                let mut key = self.key.take();
                let what = Forwarded {
                    forward,
                    target: &target,
                    client: settled.client,
                    edits: Edits {
                        dropped: route.request_fields.dropped(),
                        dropped_too: route
                            .guards
                            .authority
                            .as_ref()
                            .map_or(&[], |authority| &authority.dropped),
                        left_out: &[],
                        lines: &lines,
                    },
                    finish: self.finishers(settled).of(progress.needs),
                    caching: route.cache.as_ref().map(|cache| cache.for_request(&view, &mut key)),
                };
                let mut request = request;
                request.path = &settled.goal.path;
                let reply = self.forwarding.forward(request, what, response);
                self.lines.replace(lines);
                self.key.replace(key);
                return reply;
            }
            Act::Push(plan) => {
                self.gather_needs(&head, settled, &mut progress);
                let finish = self.finishers(settled).of(progress.needs);
                let Some(desk) = &self.desk else {
                    write_status(Status::SERVICE_UNAVAILABLE, response);
                    finish.finish(response, MadeBy::Here);
                    return Reply::Now;
                };
                let who = Who { address: settled.client.address };
                let mut request = request;
                request.path = &settled.goal.path;
                let reply = desk.call(&request, plan, who, finish.clone(), response);
                if matches!(reply, Reply::Now) {
                    finish.finish(response, MadeBy::Here);
                }
                return reply;
            }
            Act::Files(folder) => {
                if !self.file(*folder, &head, settled, response) && response.status() == Status::OK {
                    write_status(Status::NOT_FOUND, response);
                }
            }
            Act::Redirect { status, to } => {
                let location = self.location(to, &head, settled, &progress);
                response.set_status(*status).header("Location", location);
            }
            // Taking over a connection and dropping it closes it.
            Act::Close => return Reply::Leave(Box::new(|taken| Box::pin(async move { drop(taken) }))),
            Act::Respond { status, content_type, body } => {
                let view = self.compiled.view_of(&head, settled, &progress.identity);
                response.set_status(*status);
                body.render(&view, Paths::Decoded, response.buffer());
                if response.body_bytes().is_some_and(|body| !body.is_empty()) && !content_type.is_empty() {
                    response.header("Content-Type", content_type);
                }
            }
        }
        self.finish(&head, settled, progress, response)
    }

    /// Responds from a folder; returns whether the folder has the file.
    fn file(&self, folder: usize, head: &Head<'_>, settled: &Settled<'_>, response: &mut Response) -> bool {
        let (Some(folder), Some(path)) = (self.folders.get(folder), settled.file_path()) else {
            return false;
        };
        folder.call(Request::detached(*head, &path, RequestBody::NONE), response);
        response.status() != Status::NOT_FOUND
    }

    /// A redirect must not lead to a host that its rule does not name: a path that starts with two slashes would be
    /// read as a host.
    fn location(&self, to: &Text, head: &Head<'_>, settled: &Settled<'_>, progress: &Progress) -> Vec<u8> {
        let view = self.compiled.view_of(head, settled, &progress.identity);
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
