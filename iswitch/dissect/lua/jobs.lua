-- What control packets tell of data packets: as iswitch/dissect/jobs.py

local members, shapes, asked   -- job of a pair; by switch and job; by pair, job and request
local requests                 -- by who asks whom, job, request and action: what is unanswered
local frames                   -- by number: what was known when it came

function iswitch.init()
    members, shapes, asked, requests, frames = {}, {}, {}, {}, {}
end

local function pair_of(member, switch) return member .. " > " .. switch end

local function known_of(source, destination)
    for _, ends in ipairs({ { source, destination, true }, { destination, source, false } }) do
        local job = members[pair_of(ends[1], ends[2])]
        if job then
            return { job = job, shape = shapes[ends[2] .. "/" .. job], to_switch = ends[3] }
        end
    end
end

local function towards_switch(source, destination, action, pinfo)
    if TO_SWITCH[action] then return true end
    local known = known_of(source, destination)
    if known then return known.to_switch end
    local to, from = is_switch_port(pinfo.dst_port), is_switch_port(pinfo.src_port)
    if to ~= from then return to end
end

local function shape_of(v)
    if v.dtype + v.op + v.mode + v.E + v.last + v.segments == 0 then return nil end
    local size = ITEMSIZE[v.dtype]
    return {
        dtype = v.dtype, segments = v.segments, packet = SEG_SIZE + v.E * size,
        tail = SEG_SIZE + v.last * size, asynchronous = v.mode == 1,
    }
end

local function learn(source, destination, v, pinfo)
    local to_switch = towards_switch(source, destination, v.action, pinfo)
    if to_switch == nil then return end
    local switch = to_switch and destination or source
    local pair = to_switch and pair_of(source, destination) or pair_of(destination, source)
    local where, key = switch .. "/" .. v.job, pair .. "/" .. v.job .. "/" .. v.request
    if v.action == ACTION.JOIN then
        local shape = shape_of(v)
        asked[key] = shape
        members[pair] = members[pair] or v.job
        shapes[where] = shapes[where] or shape
    elseif v.action == ACTION.ACK and v["ack.action"] == ACTION.JOIN then
        local shape = asked[key]
        asked[key] = nil
        if v.status == 0 and shape then
            members[pair], shapes[where] = v.job, shape
        end
    else
        members[pair] = members[pair] or v.job
    end
end

local function link(frame, source, destination, v, pinfo)
    local is_ack = v.action == ACTION.ACK
    local from, to = source, destination
    if is_ack then from, to = destination, source end
    local action = is_ack and v["ack.action"] or v.action
    local key = string.format("%s>%s %d %d %d", from, to, v.job, v.request, action)
    local open = requests[key]
    if not is_ack then
        if open and not open.answered then
            frame.repeat_of = open[1]
        else
            open = {}
            requests[key] = open
        end
        table.insert(open, pinfo.number)
        open.last, open.time = pinfo.number, pinfo.rel_ts
    elseif open then
        frame.request_in, frame.ack_time = open.last, pinfo.rel_ts - open.time
        for _, number in ipairs(open) do
            frames[number].response_in = frames[number].response_in or pinfo.number
        end
        open.answered = true
    else
        frame.unmatched = true
    end
end

local function note(frame, source, destination, v, pinfo)  -- once, however often it is looked at
    if frame.noted then return end
    frame.noted = true
    learn(source, destination, v, pinfo)
    link(frame, source, destination, v, pinfo)
    local known = known_of(source, destination)
    frame.to_switch = known and known.to_switch
end
