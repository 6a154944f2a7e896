//! Areas of cost: the part of serving a request that a stack belongs to.
//!
//! A stack belongs to the area of its innermost frame that is known to any area. Kernel stacks are judged only by
//! kernel frames: the work of a system call counts for the system call, no matter which code made it.

use std::borrow::Cow;

use crate::{Frame, Kind, Profile};

/// A part of serving a request.
#[derive(Debug, PartialEq, Eq)]
pub struct Area {
    /// Its name.
    pub name: &'static str,
    /// A one-line description.
    pub about: &'static str,
    /// Functions of processes that belong to it: patterns separated by blanks.
    user: &'static str,
    /// Functions of the kernel that belong to it: the same.
    kernel: &'static str,
}

/// What an area costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AreaCost {
    /// The area.
    pub area: &'static Area,
    /// Its weight, in the profile's unit.
    pub weight: u64,
}

impl Profile {
    /// The cost of all areas, in the table's order; the sum is the weight of all stacks.
    pub fn areas(&self) -> Vec<AreaCost> {
        let mut costs: Vec<AreaCost> = Area::all().map(|area| AreaCost { area, weight: 0 }).collect();
        // There are few frames and many stacks: each name is looked up once.
        let frames = self.stacks.frames();
        let areas: Vec<Option<&Area>> = frames.iter().map(Area::of_frame).collect();
        for (stack, weight) in self.stacks.indexed() {
            let area =
                Area::of(stack.iter().map(|&index| (frames[index as usize].kind, areas[index as usize])));
            if let Some(cost) = costs.iter_mut().find(|cost| std::ptr::eq(cost.area, area)) {
                cost.weight = cost.weight.saturating_add(weight);
            }
        }
        costs
    }
}

impl Area {
    /// All areas, in the order in which a request passes them.
    pub fn all() -> impl Iterator<Item = &'static Area> {
        AREAS.iter().chain([&OTHER_USER, &OTHER_KERNEL])
    }

    /// The area of a stack with frames of these kinds and areas, outermost first.
    fn of(frames: impl DoubleEndedIterator<Item = (Kind, Option<&'static Area>)>) -> &'static Area {
        let mut innermost_first = frames.rev().peekable();
        let in_kernel = innermost_first.peek().is_some_and(|(kind, _)| *kind == Kind::Kernel);
        let mut judged = innermost_first.take_while(|(kind, _)| !in_kernel || *kind == Kind::Kernel);
        let known = judged.find_map(|(_, area)| area);
        known.unwrap_or(if in_kernel { &OTHER_KERNEL } else { &OTHER_USER })
    }

    /// The first area of the table that contains a function.
    fn of_frame(frame: &Frame) -> Option<&'static Area> {
        AREAS.iter().find(|area| area.knows(frame))
    }

    fn knows(&self, frame: &Frame) -> bool {
        let (patterns, name) = match frame.kind {
            Kind::Root => return false,
            Kind::User | Kind::Inlined => (self.user, Cow::from(frame.name.as_str())),
            Kind::Kernel => (self.kernel, plain(&frame.name)),
        };
        patterns.split_ascii_whitespace().any(|pattern| matches(pattern, &name))
    }
}

/// Prefixes of system calls in the kernel, by version and architecture.
const CALLS: [&str; 8] = [
    "__x64_sys_",
    "__arm64_sys_",
    "__riscv_sys_",
    "__ia32_sys_",
    "__se_sys_",
    "__do_sys_",
    // Before Linux 4.17.
    "SyS_",
    "SYSC_",
];

/// A kernel function without the additions of its version, architecture and compiler: `sys_sendto` for
/// `__x64_sys_sendto`, `__arm64_sys_sendto` and `SyS_sendto`; `tcp_ack` for `tcp_ack.part.0`.
fn plain(name: &str) -> Cow<'_, str> {
    let name = name.split('.').next().unwrap_or(name);
    match CALLS.iter().find_map(|prefix| name.strip_prefix(prefix)) {
        Some(call) => format!("sys_{call}").into(),
        None => name.into(),
    }
}

/// The table. In a pattern `*` matches anything, at the start, the end or both. If a frame is in several areas, the first one
/// counts.
///
/// Names of the kernel are those of Linux 4.14 to 6.18, as [`plain`] makes them; names of programs are ours, nginx's,
/// haproxy's, h2o's, and of the parsers that others use.
static AREAS: [Area; 17] = [
    Area {
        name: "parse",
        about: "reading requests: heads, targets, chunks",
        user: "*flatout_wire::* wire::* *httparse::* *http_parser* *llhttp_* *phr_parse* *ngx_http_parse* \
            *ngx_http_process_request* *h1_headers_to_hdr_list* *h1_parse* *parse_request*",
        kernel: "",
    },
    Area {
        name: "write",
        about: "encoding responses: heads, dates, lengths, into a buffer",
        user: "*engine::output::* *::output::Output::* *ngx_http_write_filter* *ngx_http_header_filter* \
            *ngx_output_chain* *ngx_linux_sendfile* *ngx_writev* *h2o_flatten_headers* \
            *hyper::proto::h1::role* *itoa::*",
        kernel: "",
    },
    Area {
        name: "handler",
        about: "producing responses: routes, handlers, files, JSON, compression",
        user: "*flatout::* *flatout_server::* *flatout_site::* *flatout_files::* *flatout_compress::* *flatout_cache::* \
            *flatout_proxy::* *flatout_gateway::* *flatout_push::* *flatout_bus::* *flatout_observe::* \
            *flatout_admin::* *serde_json::* *serde_core::* *matchit::* \
            *Service>::call* *::Service::call* *ngx_http_static_handler* *ngx_http_core_content_phase* \
            *ngx_http_proxy* *ngx_http_upstream* *deflate* *brotli* *ZSTD_* *json*",
        kernel: "",
    },
    Area {
        name: "event loop",
        about: "the server's own loop: connections, timers, runtime",
        user: "*flatout_engine::* *flatout_lane::* engine::* lane::* *tokio::* *mio::* *ngx_epoll* \
            *ngx_event* *ngx_process_events* *epoll_wait* *uv__* *ev_run*",
        kernel: "",
    },
    Area {
        name: "mitigations",
        about: "retpolines and speculation barriers: /sys/devices/system/cpu/vulnerabilities",
        user: "",
        kernel: "__x86_indirect_* __x86_return_thunk* srso_* retbleed_* \
            zen_untrain_ret* entry_untrain_ret* entry_ibpb* write_ibpb* clear_bhb_loop* mds_verw* \
            x86_verw* spectre_bhb* its_return_thunk* indirect_thunk*",
    },
    Area {
        name: "audit",
        about: "audit records of system calls: auditctl -s",
        user: "",
        kernel: "audit_* __audit_* auditsc_*",
    },
    Area {
        name: "seccomp",
        about: "seccomp filters of system calls: Seccomp in /proc/PID/status",
        user: "",
        kernel: "__seccomp_filter* __secure_computing* seccomp_* populate_seccomp_data*",
    },
    Area {
        name: "taps",
        about: "copies for packet sockets: ss --packet --processes",
        user: "",
        kernel: "packet_rcv* tpacket_rcv* dev_queue_xmit_nit* deliver_ptype_list_skb* packet_snd*",
    },
    Area {
        name: "netfilter",
        about: "firewall, address translation, connection tracking",
        user: "",
        kernel: "nf_* nft_* __nf_* ipt_* ip6t_* ip_tables* iptable_* xt_* ebt_* ipv4_conntrack_* \
            ipv6_conntrack_* ip_set_* __nft_* hash_conntrack*",
    },
    Area {
        name: "scheduling",
        about: "wake-ups, waiting, context switches",
        user: "",
        kernel: "schedule* __schedule* preempt_schedule* dynamic_cond_resched* try_to_wake_up* ttwu_* \
            enqueue_task* dequeue_task* pick_next_task* __pick_next_task* update_curr* sched_* \
            finish_task_switch* __switch_to* switch_mm* select_task_rq* futex_* do_futex* __futex_* \
            wake_up_q* wakeup_preempt* check_preempt* _nohz_idle_balance* sysvec_reschedule*",
    },
    Area {
        name: "epoll",
        about: "readiness: epoll_wait and epoll wake-ups",
        user: "",
        kernel: "ep_* do_epoll* sys_epoll* sys_poll* sys_ppoll* sys_select* sys_pselect* \
            __ep_* eventpoll_* io_cqring* do_poll* do_sys_poll* do_select*",
    },
    Area {
        name: "TCP receive",
        about: "received packets: drivers, IP, TCP, recv",
        user: "",
        kernel: "tcp_v4_rcv* tcp_v6_rcv* tcp_v4_do_rcv* tcp_v6_do_rcv* tcp_rcv_* tcp_recvmsg* tcp_data_* \
            tcp_ack* tcp_clean_rtx* tcp_queue_rcv* tcp_event_data_recv* tcp_prequeue* tcp_gro_* \
            tcp4_gro_* __inet_lookup* inet_recvmsg* inet6_recvmsg* sock_recvmsg* __sys_recv* \
            sys_recv* sock_read_iter* ip_rcv* ip6_rcv* ipv6_rcv* ip_local_deliver* ip_sublist_rcv* \
            ip_list_rcv* __netif_receive_skb* netif_receive_skb* process_backlog* net_rx_action* \
            __napi_poll* napi_* dev_gro_receive* sock_def_readable* skb_copy_datagram* virtnet_poll* \
            virtnet_receive* tcp_rack_* tcp_check_space* tcp_new_space* enqueue_to_backlog* netif_rx* \
            __netif_rx* tcp_rbtree* bbr_* cubictcp_* tcp_cong_* tcp_rate_*",
    },
    Area {
        name: "TCP send",
        about: "sent packets: send, TCP, IP, queues, drivers",
        user: "",
        kernel: "tcp_sendmsg* tcp_write_xmit* tcp_transmit_skb* __tcp_transmit_skb* tcp_push* __tcp_push* tcp_send_* \
            __tcp_send_ack* tcp_tx_* tcp_stream_alloc_skb* sk_stream_alloc_skb* tcp_skb_entail* inet_sendmsg* inet6_sendmsg* \
            sock_sendmsg* __sock_sendmsg* __sys_send* sys_send* sock_write_iter* __ip_queue_xmit* \
            ip_queue_xmit* ip_output* ip_finish_output* __ip_finish_output* ip_local_out* \
            __ip_local_out* ip6_xmit* ip6_output* ip6_finish_output* dev_queue_xmit* __dev_queue_xmit* \
            dev_hard_start_xmit* loopback_xmit* sch_direct_xmit* __qdisc_run* net_tx_action* start_xmit* \
            xmit_skb* tcp_established_options* tcp_splice* splice_* do_splice* tcp_chrono* \
            tcp_schedule_loss_probe* veth_xmit* skb_splice_from_iter*",
    },
    Area {
        name: "connections",
        about: "opening and closing: accept, socket, close",
        user: "",
        kernel: "__sys_accept* sys_accept* do_accept* inet_csk_accept* inet_accept* sys_close* tcp_close* \
            __tcp_close* inet_release* sock_close* __sock_release* tcp_v4_connect* tcp_conn_request* \
            __sys_socket* sys_socket* sys_connect* __sys_shutdown* sys_shutdown* tcp_check_req* \
            tcp_time_wait* inet_csk_destroy_sock*",
    },
    Area {
        name: "files and memory",
        about: "reading files, page faults, allocation for the process",
        user: "",
        kernel: "filemap_* generic_file_* vfs_read* vfs_open* vfs_stat* do_sys_open* path_openat* ext4_* \
            xfs_* shmem_* do_user_addr_fault* handle_mm_fault* exc_page_fault* asm_exc_page_fault* \
            do_mmap* sys_munmap* sys_madvise* vfs_write*",
    },
    Area {
        name: "interrupts",
        about: "timer and other interrupts",
        user: "",
        kernel: "asm_sysvec_* sysvec_* __irq_exit_rcu* irq_exit* handle_softirqs* __do_softirq* hrtimer_* \
            __hrtimer_* tick_* run_timer_softirq* asm_common_interrupt* common_interrupt* rcu_core*",
    },
    Area {
        name: "system calls",
        about: "entering and leaving the kernel",
        user: "",
        kernel: "entry_SYSCALL* do_syscall_64* x64_sys_call* syscall_* sys_* el0_svc* el0t_64_sync* \
            invoke_syscall* fput* __fget* fdget* sockfd_lookup* exit_to_user_mode*",
    },
];

static OTHER_USER: Area =
    Area { name: "other user", about: "user code of no known area", user: "", kernel: "" };

static OTHER_KERNEL: Area =
    Area { name: "other kernel", about: "kernel code of no known area", user: "", kernel: "" };

fn matches(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(rest), Some(_)) => name.contains(rest.trim_end_matches('*')),
        (Some(rest), None) => name.ends_with(rest),
        (None, Some(rest)) => name.starts_with(rest),
        (None, None) => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `main;k:tcp_sendmsg`: kernel frames are marked with `k:`.
    fn area(folded: &str) -> &'static str {
        let frames: Vec<Frame> = folded
            .split(';')
            .map(|name| match name.strip_prefix("k:") {
                Some(name) => Frame::new(Kind::Kernel, name),
                None => Frame::new(Kind::User, name),
            })
            .collect();
        Area::of(frames.iter().map(|frame| (frame.kind, Area::of_frame(frame)))).name
    }

    #[test]
    fn stacks_belong_to_their_innermost_known_frame() {
        let send =
            "main;send;k:entry_SYSCALL_64_after_hwframe;k:do_syscall_64;k:__x64_sys_sendto;k:tcp_sendmsg";
        for (inner, expected) in [
            ("", "TCP send"),
            (";k:__alloc_skb", "TCP send"),
            (";k:__tcp_transmit_skb;k:ip_output;k:nf_hook_slow;k:nft_do_chain", "netfilter"),
            (";k:dev_hard_start_xmit;k:dev_queue_xmit_nit;k:packet_rcv;k:consume_skb", "taps"),
            (";k:handle_softirqs;k:net_rx_action;k:tcp_v4_rcv", "TCP receive"),
            (";k:tcp_v4_rcv;k:sock_def_readable;k:ep_poll_callback", "epoll"),
            (";k:ep_poll_callback;k:try_to_wake_up;k:_raw_spin_lock", "scheduling"),
            (";k:srso_alias_return_thunk", "mitigations"),
            (";k:tcp_ack.part.0", "TCP receive"),
        ] {
            assert_eq!(area(&format!("{send}{inner}")), expected, "{inner}");
        }
        assert_eq!(area("main;k:do_syscall_64;k:__audit_syscall_entry"), "audit");
        assert_eq!(area("main;k:syscall_trace_enter;k:__seccomp_filter;k:bpf_prog_12"), "seccomp");
        assert_eq!(area("main;k:something_new"), "other kernel");
    }

    /// Stacks of kernels from ten years; the first frames are the entry path.
    #[test]
    fn kernels_old_and_new_are_known() {
        let v4_14 = "main;send;k:entry_SYSCALL_64_fastpath";
        let v5_15 = "main;send;k:entry_SYSCALL_64_after_hwframe;k:do_syscall_64";
        let v6_1 = v5_15;
        let v6_18 = "main;send;k:entry_SYSCALL_64_after_hwframe;k:do_syscall_64;k:x64_sys_call";
        let arm = "main;send;k:el0t_64_sync;k:el0t_64_sync_handler;k:el0_svc;k:do_el0_svc;k:invoke_syscall";
        #[rustfmt::skip]
        let stacks = [
            (v4_14, "k:SyS_sendto;k:SYSC_sendto;k:sock_sendmsg;k:inet_sendmsg;k:tcp_sendmsg;k:tcp_sendmsg_locked;k:sk_stream_alloc_skb;k:__alloc_skb", "TCP send"),
            (v4_14, "k:SyS_sendto;k:tcp_push;k:__tcp_push_pending_frames;k:tcp_write_xmit;k:tcp_transmit_skb", "TCP send"),
            (v5_15, "k:__x64_sys_sendto;k:__sys_sendto;k:sock_sendmsg;k:tcp_sendmsg;k:tcp_sendmsg_locked;k:copy_user_generic", "TCP send"),
            (v6_1, "k:__x64_sys_writev;k:do_writev;k:vfs_writev;k:do_iter_readv_writev;k:sock_write_iter;k:tcp_sendmsg;k:tcp_stream_alloc_skb", "TCP send"),
            (v6_18, "k:__x64_sys_sendto;k:__sys_sendto;k:tcp_sendmsg;k:tcp_sendmsg_locked;k:skb_splice_from_iter", "TCP send"),
            (v6_18, "k:tcp_write_xmit;k:__tcp_transmit_skb;k:__ip_queue_xmit;k:ip_output;k:ip_finish_output2;k:__dev_queue_xmit;k:dev_hard_start_xmit;k:veth_xmit", "TCP send"),
            (arm, "k:__arm64_sys_sendto;k:__sys_sendto;k:__sock_sendmsg", "TCP send"),
            (v4_14, "k:SyS_recvfrom;k:SYSC_recvfrom;k:inet_recvmsg;k:tcp_recvmsg;k:skb_copy_datagram_iter", "TCP receive"),
            (v4_14, "k:__do_softirq;k:net_rx_action;k:process_backlog;k:__netif_receive_skb_core;k:ip_rcv;k:ip_rcv_finish;k:ip_local_deliver_finish;k:tcp_v4_rcv;k:tcp_v4_do_rcv;k:tcp_rcv_established", "TCP receive"),
            (v5_15, "k:__x64_sys_recvfrom;k:__sys_recvfrom;k:inet_recvmsg;k:tcp_recvmsg;k:tcp_recvmsg_locked;k:_copy_to_iter", "TCP receive"),
            (v6_1, "k:__do_softirq;k:net_rx_action;k:__napi_poll;k:virtnet_poll;k:virtnet_receive;k:napi_gro_receive;k:dev_gro_receive;k:inet_gro_receive;k:tcp4_gro_receive", "TCP receive"),
            (v6_18, "k:handle_softirqs;k:net_rx_action;k:__napi_poll.constprop.0;k:process_backlog;k:__netif_receive_skb_one_core;k:ip_rcv;k:ip_local_deliver;k:ip_protocol_deliver_rcu", "TCP receive"),
            (arm, "k:__arm64_sys_recvfrom;k:__sys_recvfrom;k:_raw_spin_lock_bh", "TCP receive"),
            (v4_14, "k:SyS_epoll_wait;k:ep_poll;k:ep_send_events_proc", "epoll"),
            (v4_14, "k:SyS_epoll_ctl;k:kmem_cache_alloc", "epoll"),
            (v5_15, "k:__x64_sys_epoll_wait;k:do_epoll_wait;k:ep_poll;k:ep_item_poll.isra.0;k:tcp_poll", "epoll"),
            (v6_1, "k:tcp_v4_rcv;k:tcp_data_ready;k:sock_def_readable;k:__wake_up_common;k:ep_poll_callback;k:_raw_read_lock_irqsave", "epoll"),
            (v6_18, "k:__x64_sys_epoll_pwait2;k:do_epoll_wait;k:ep_poll;k:ep_try_send_events", "epoll"),
            (arm, "k:__arm64_sys_epoll_pwait;k:copy_from_user", "epoll"),
            (v4_14, "k:ip_local_out;k:__ip_local_out;k:nf_hook_slow;k:iptable_filter_hook;k:ipt_do_table", "netfilter"),
            (v4_14, "k:ip_rcv;k:nf_hook_slow;k:ipv4_conntrack_in;k:nf_conntrack_in;k:tcp_packet", "netfilter"),
            (v5_15, "k:ip_rcv;k:nf_hook_slow;k:nft_do_chain_inet;k:nft_do_chain;k:nft_meta_get_eval", "netfilter"),
            (v6_1, "k:__ip_local_out;k:nf_hook_slow;k:nf_conntrack_in;k:__nf_conntrack_find_get.isra.0", "netfilter"),
            (v6_18, "k:ip_rcv;k:nf_hook_slow;k:nft_do_chain_ipv4;k:nft_do_chain;k:nft_lookup_eval;k:nft_rhash_lookup", "netfilter"),
            (v4_14, "k:SyS_epoll_wait;k:ep_poll;k:schedule_hrtimeout_range_clock;k:schedule;k:__schedule;k:pick_next_task_fair", "scheduling"),
            (v5_15, "k:ep_poll_callback;k:__wake_up_common;k:ep_autoremove_wake_function;k:try_to_wake_up;k:ttwu_do_activate;k:enqueue_task_fair;k:update_load_avg", "scheduling"),
            (v6_1, "k:do_epoll_wait;k:schedule_hrtimeout_range_clock;k:schedule;k:__schedule;k:psi_task_switch", "scheduling"),
            (v6_18, "k:do_epoll_wait;k:schedule;k:__schedule;k:__pick_next_task;k:pick_task_fair;k:pick_eevdf", "scheduling"),
            (v4_14, "k:SyS_sendto;k:tcp_sendmsg;k:__x86_indirect_thunk_rax", "mitigations"),
            (v5_15, "k:__x64_sys_sendto;k:sock_sendmsg;k:__x86_indirect_thunk_array", "mitigations"),
            (v6_1, "k:__x64_sys_sendto;k:tcp_sendmsg;k:zen_untrain_ret", "mitigations"),
            (v6_1, "k:__x64_sys_sendto;k:tcp_sendmsg;k:__x86_return_thunk", "mitigations"),
            (v6_18, "k:tcp_sendmsg;k:__x86_indirect_its_thunk_array", "mitigations"),
            (v6_18, "k:clear_bhb_loop", "mitigations"),
            (v4_14, "k:syscall_trace_enter;k:__audit_syscall_entry", "audit"),
            (v5_15, "k:syscall_exit_to_user_mode;k:__audit_syscall_exit;k:audit_filter_syscall;k:audit_filter_rules.constprop.0", "audit"),
            (v6_1, "k:syscall_exit_work;k:__audit_syscall_exit;k:audit_reset_context.part.0.constprop.0", "audit"),
            (v6_18, "k:syscall_trace_enter;k:__audit_syscall_entry;k:ktime_get_coarse_real_ts64", "audit"),
            (v4_14, "k:syscall_trace_enter;k:__secure_computing;k:__seccomp_filter;k:___bpf_prog_run", "seccomp"),
            (v5_15, "k:syscall_trace_enter.constprop.0;k:__secure_computing;k:__seccomp_filter;k:bpf_prog_3fa", "seccomp"),
            (v6_18, "k:syscall_trace_enter;k:__seccomp_filter;k:bpf_prog_1", "seccomp"),
            (v4_14, "k:dev_hard_start_xmit;k:dev_queue_xmit_nit;k:tpacket_rcv;k:skb_copy_bits", "taps"),
            (v5_15, "k:__netif_receive_skb_core.constprop.0;k:packet_rcv;k:skb_clone", "taps"),
            (v6_18, "k:dev_queue_xmit_nit;k:packet_rcv_spkt", "taps"),
            (v4_14, "k:SyS_accept4;k:kmem_cache_alloc", "connections"),
            (v6_18, "k:__x64_sys_accept4;k:__sys_accept4;k:do_accept;k:alloc_file_pseudo", "connections"),
            (v4_14, "k:SyS_futex;k:do_futex;k:futex_wake", "scheduling"),
            (v4_14, "k:SyS_sched_yield", "system calls"),
            (v6_18, "k:__x64_sys_getpid", "system calls"),
        ];
        for (way_in, inner, expected) in stacks {
            assert_eq!(area(&format!("{way_in};{inner}")), expected, "{inner}");
        }
    }

    #[test]
    fn processes_are_judged_by_their_own_frames() {
        assert_eq!(area("main;flatout_engine::worker::run;flatout_wire::head::parse"), "parse");
        assert_eq!(
            area("main;flatout_engine::serving::pump;flatout_engine::output::Output::encode"),
            "write"
        );
        assert_eq!(area("main;<App as flatout::Service>::call;shop::quote;alloc"), "handler");
        assert_eq!(area("main;flatout_files::service::find;alloc"), "handler");
        assert_eq!(area("main;ngx_worker_process_cycle;ngx_http_parse_request_line"), "parse");
        assert_eq!(area("main;compute"), "other user");
        // The work of a system call belongs to the kernel, even if a parser made it.
        assert_eq!(area("flatout_wire::head::parse;k:exc_page_fault"), "files and memory");
    }

    #[test]
    fn patterns_are_anchored_as_written() {
        for (pattern, name, expected) in [
            ("nf_*", "nf_hook", true),
            ("nf_*", "conf_hook", false),
            ("*json*", "a::json::b", true),
            ("*json", "json5", false),
            ("exact", "exact", true),
            ("exact", "exactly", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn areas_are_many_and_have_one_name_each() {
        let names: std::collections::HashSet<&str> = Area::all().map(|area| area.name).collect();
        assert_eq!(names.len(), Area::all().count());
        assert!(Area::all().all(|area| !area.about.is_empty()));
    }
}
